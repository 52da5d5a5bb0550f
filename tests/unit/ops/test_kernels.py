"""Which devices the ops have kernels for; needs none of the devices."""

from __future__ import annotations

import pytest
from tensorflow.python.framework import kernels

from ring_keras import _libraries

REDUCING = [
    "RingKerasAllreduce",
    "RingKerasAllreduceStart",
    "RingKerasAllreduceWait",
    "RingKerasReduceScatter",
]
MOVING = [
    "RingKerasAllgather",
    "RingKerasArrive",
    "RingKerasAlltoall",
    "RingKerasBarrier",
    "RingKerasBroadcast",
    "RingKerasBroadcastPieces",
    "RingKerasCheckReductions",
    "RingKerasDepart",
]


def kernels_of(op, device):
    _libraries.ops()
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return [kernel for kernel in registered if kernel.device_type == device]


@pytest.mark.parametrize("op", REDUCING + MOVING)
def test_every_op_runs_on_cpus_and_gpus(op):
    assert len(kernels_of(op, "CPU")) == 1
    assert kernels_of(op, "GPU")


@pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)
@pytest.mark.parametrize("device", ["XLA_CPU_JIT", "XLA_GPU_JIT"])
@pytest.mark.parametrize("op", REDUCING + MOVING)
def test_xla_compiles_every_op(op, device):
    assert len(kernels_of(op, device)) == 1


@pytest.mark.parametrize("op", REDUCING)
def test_types_that_nccl_cannot_reduce_are_in_host_memory(op):
    staged = {
        kernel.constraint[0].allowed_values.list.type[0]: kernel
        for kernel in kernels_of(op, "GPU")
        if kernel.constraint
    }
    (general,) = (k for k in kernels_of(op, "GPU") if not k.constraint)

    assert len(staged) == 3
    for kernel in staged.values():
        assert kernel.priority > general.priority
        assert set(kernel.host_memory_arg) > set(general.host_memory_arg)


def test_numbers_that_the_host_needs_are_in_host_memory():
    def host_memory(op):
        (kernel,) = (k for k in kernels_of(op, "GPU") if not k.constraint)
        return set(kernel.host_memory_arg)

    factors = {"prescale", "postscale"}
    assert host_memory("RingKerasAllreduce") == factors
    assert host_memory("RingKerasReduceScatter") == factors
    assert host_memory("RingKerasAllreduceStart") == factors | {"weight", "handle"}
    assert host_memory("RingKerasAllreduceWait") == {"handle"}
    assert host_memory("RingKerasDepart") == {"tensors", "weight"}
    assert host_memory("RingKerasArrive") == {"results"}
    assert host_memory("RingKerasAlltoall") == {"splits", "received_splits"}
