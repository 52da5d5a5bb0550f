"""Every name of Horovod's TensorFlow and Keras modules, with its arguments.

`horovod_0_28_1.txt` is what `inspect.signature` says of that release.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import keras
import pytest

import ring_keras as ring
from ring_keras import _native
from ring_keras.horovod import _absent
from ring_keras.horovod.tensorflow.compression import Compression

RECORD = Path(__file__).with_name("horovod_0_28_1.txt")
LINES = RECORD.read_text().splitlines()

# Ours has other names for the same arguments, or says what Horovod hides.
KNOWN_DIFFERENCES = {
    "ProcessSet(ranks_or_comm)": "(ranks)",
    "init(*args, **kwargs)": "(comm=None, process_sets=None)",
}


def described(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.default is parameter.empty:
        return text
    default: Any = repr(parameter.default)
    if parameter.default is Compression.none:
        default = "Compression.none"
    if parameter.default is ring.global_process_set:
        default = "global_process_set"
    if parameter.default is ring.Average:
        default = "Average"
    return f"{text}={default}"


@pytest.mark.parametrize("line", LINES)
def test_the_name_and_its_arguments_are_here(line: str) -> None:
    path, _, arguments = line.partition("(")
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(f"ring_keras.{module_name}")
    except ModuleNotFoundError:
        raise AssertionError(f"there is no module ring_keras.{module_name}") from None
    value = getattr(module, name)
    assert name in module.__all__
    if not arguments:
        return
    parameters = [described(p) for p in inspect.signature(value).parameters.values()]
    known = KNOWN_DIFFERENCES.get(line.removeprefix(f"{module_name}."))
    if known is not None:
        assert f"({', '.join(parameters)})" == known
        return
    theirs = re.split(r", (?![^(]*\))", arguments.removesuffix(")"))
    theirs = [argument for argument in theirs if argument]
    assert parameters[: len(theirs)] == theirs
    # What is more can be left out.
    assert all("=" in argument for argument in parameters[len(theirs) :])


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("tensorflow.broadcast_global_variables", [0]),
        ("tensorflow.elastic.TensorFlowState", []),
        ("keras.elastic.CommitStateCallback", [None]),
        ("keras.elastic.UpdateBatchStateCallback", [None]),
        ("keras.elastic.UpdateEpochStateCallback", [None]),
    ],
)
def test_what_has_no_counterpart_says_what_to_use(
    path: str, arguments: list[Any]
) -> None:
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(f"ring_keras.horovod.{module_name}")
    with pytest.raises(_absent.AbsentError, match=f"has no .*{name}") as raised:
        getattr(module, name)(*arguments)
    assert isinstance(raised.value, NotImplementedError)
    assert len(str(raised.value)) > 60, "it does not say what to use instead"


def test_arguments_that_would_have_to_do_something_are_refused() -> None:
    import ring_keras.horovod.tensorflow as hvd

    with pytest.raises(NotImplementedError, match=r"Received: comm=\[0\]"):
        hvd.init(comm=[0])
    with pytest.raises(NotImplementedError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)
    with pytest.raises(NotImplementedError, match="legacy_opts"):
        hvd_keras = importlib.import_module("ring_keras.horovod.keras")
        hvd_keras.load_model("model.keras", legacy_opts=True)
    with pytest.raises(ValueError, match="takes the place"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)
    with pytest.raises(TypeError, match=r"optimizer of Keras 3.*Received: .*object"):
        hvd.DistributedOptimizer(object())


def test_what_was_built_is_answered() -> None:
    import ring_keras.horovod.tensorflow as hvd

    found = {title: version for title, version, _, _ in _native.cuda_libraries()}
    answers = {
        name: getattr(hvd, name)() for name in hvd.__all__ if name.endswith("_built")
    }
    assert answers.pop("cuda_built") == bool(found["CUDA runtime"])
    assert bool(answers.pop("nccl_built")) == bool(found["NCCL"])
    assert not any(answers.values())
    assert not hvd.mpi_enabled()
    assert not hvd.gloo_enabled()
    assert not hvd.mpi_threads_supported()


def test_errors_are_those_that_scripts_catch() -> None:
    import tensorflow as tf

    from ring_keras.horovod.tensorflow import elastic

    assert elastic.run is ring.elastic.run
    assert issubclass(ring.RankMismatchError, tf.errors.FailedPreconditionError)
    assert issubclass(ring.PeerLostError, elastic.HorovodInternalError)
    assert issubclass(elastic.HorovodInternalError, RuntimeError)
    exceptions = importlib.import_module("ring_keras.horovod.common.exceptions")
    assert exceptions.HorovodInternalError is elastic.HorovodInternalError
    assert exceptions.HostsUpdatedInterrupt is elastic.HostsUpdatedInterrupt
    assert issubclass(ring.CollectiveTimeoutError, elastic.HorovodInternalError)
    assert elastic.HostsUpdatedInterrupt(skip_sync=True).skip_sync


def test_an_optimizer_keeps_its_class_and_name() -> None:
    import ring_keras.horovod.keras as hvd

    optimizer = keras.optimizers.Adam(name="mine")
    assert hvd.DistributedOptimizer(optimizer, name="theirs") is optimizer
    assert optimizer.name == "mine"
