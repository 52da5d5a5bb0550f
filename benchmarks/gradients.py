"""Allreduce of a model's gradients, and of 4 bytes, through TensorFlow."""

from __future__ import annotations

from benchmarks.cases import Column, Row, Section, Target
from benchmarks.peers.horovod import HOROVOD
from benchmarks.peers.mpi import INTEL_MPI, MPICH, OPEN_MPI
from benchmarks.peers.mwms import MWMS
from benchmarks.peers.oneccl import ONECCL
from benchmarks.peers.ring_keras import ARRAYS, TENSORS
from benchmarks.peers.torch_gloo import TORCH

__all__ = ["gradients", "tensors"]

_OURS = "ring_keras, TF ops"
_RESNET, _TRANSFORMER = "ResNet-50, 161 tensors", "Transformer, 70 tensors"

_OURS_SHARED = "ring_keras, shared flat"
_OPEN_MPI = "Open MPI, one by one"
_LEAST = {"Horovod": 8, "torch DDP": 6, "MWMS": 25, _OPEN_MPI: 1.3, _OURS_SHARED: 0.7}
_TARGETS = {
    2: [
        Target([_RESNET, _TRANSFORMER], _OURS, [other], least)
        for other, least in _LEAST.items()
    ],
    4: [
        Target([_RESNET], _OURS, ["Horovod"], 6),
        Target([_RESNET], _OURS, [_OPEN_MPI], 1.5),
    ],
}


def gradients(quick: bool) -> list[Section]:
    """In tf.function, beside raw buffers; on four ranks too, if not `quick`."""
    columns = [
        Column(_RESNET, "shapes=resnet50", 102_228_128),
        Column(_TRANSFORMER, "shapes=transformer", 29_185_280),
    ]
    rows = [
        Row(_OURS, TENSORS, "gradients"),
        Row("Horovod", HOROVOD, "gradients"),
        Row("MWMS", MWMS, "gradients"),
        Row("torch DDP", TORCH, "ddp"),
        Row("ring_keras, arrays one by one", ARRAYS, "gradients"),
        Row("ring_keras, arrays flat", ARRAYS, "gradients layout=flat"),
        Row(_OURS_SHARED, ARRAYS, "gradients layout=flat memory=shared"),
    ]
    for name, program in (
        ("Open MPI", OPEN_MPI),
        ("MPICH", MPICH),
        ("Intel MPI", INTEL_MPI),
        ("oneCCL", ONECCL),
        ("torch gloo", TORCH),
    ):
        rows += [
            Row(f"{name}, one by one", program, "gradients"),
            Row(f"{name}, flat", program, "gradients layout=flat"),
        ]
    return [
        Section(
            f"Gradients, float32, {ranks} ranks",
            ranks,
            rows,
            columns,
            _TARGETS[ranks],
        )
        for ranks in ((2,) if quick else (2, 4))
    ]


def tensors(quick: bool) -> list[Section]:
    """Single tensors through TensorFlow ops in tf.function."""
    sizes = {
        "4 B": 4,
        "64 KiB": 64 << 10,
        "1 MiB": 1 << 20,
        "16 MiB": 16 << 20,
        "64 MiB": 64 << 20,
    }
    rows = [
        Row(_OURS, TENSORS, "allreduce"),
        Row("Horovod", HOROVOD, "allreduce"),
        Row("MWMS", MWMS, "allreduce"),
        Row("CollectiveReduceV2", MWMS, "allreduce by=op"),
        Row("a Snapshot op, which copies", TENSORS, "identity"),
    ]
    columns = [
        Column(title, f"nbytes={nbytes}", nbytes) for title, nbytes in sizes.items()
    ][: 1 if quick else None]
    return [
        Section(
            "Allreduce of one float32 tensor in tf.function, 2 ranks",
            2,
            rows,
            columns,
            [Target(["4 B"], _OURS, ["Horovod"], 15)],
        )
    ]
