"""What every rank does while a fault comes to one of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.faults.cases import FITS, Case
from support.faults.commit import commit, commit_beside, commit_in_init

STEPS = 20
TENSORS = "/memfd:ring_keras_tensors"


def work(case: Case, directory: str) -> None:
    """Has the fault come to this rank, if it is the one."""
    import ring_keras as ring

    rank = int(os.environ["RING_KERAS_RANK"])
    with nothing_left(), time_of_error(Path(directory, f"raised.{rank}")):
        is_victim = rank == case.victim
        if is_victim and case.place == "in init":
            commit_in_init(case, directory)
        ring.init()
        if case.work in FITS:
            fit(case, directory, is_victim)
        else:
            call(case, directory, is_victim)
        ring.barrier(name="the end")


@contextlib.contextmanager
def time_of_error(note: Path) -> Iterator[None]:
    """Notes when an error passed, before shutdown() has said good-bye to all."""
    try:
        yield
    except BaseException:
        note.write_text(str(time.monotonic()))
        raise


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """After shutdown() a rank has what it had before init(), and its tensors."""
    import ring_keras as ring

    before = what_the_job_has()
    try:
        yield
    finally:
        ring.shutdown()
        after = what_the_job_has()
        assert after == before, f"descriptors and segments: {before}, then {after}"


def what_the_job_has() -> Counter[str]:
    """Descriptors of other than files, by kind, and segments of shared memory."""
    kinds: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if not target.startswith("/"):
                kinds[target.partition("[")[0]] += 1
            elif target.startswith("/memfd:ring_keras"):
                kinds[target] += 1
    mappings = Path("/proc/self/maps").read_text().splitlines()
    kinds["segments"] = sum("/memfd:ring_keras " in line for line in mappings)
    # In pieces, where some of it has been taken away from peers.
    tensors = {line.split()[4] for line in mappings if TENSORS in line}
    kinds["memories of tensors"] = len(tensors)
    # A process keeps its own.
    kinds -= Counter({f"{TENSORS} (deleted)": 1, "memories of tensors": 1})
    return kinds


def call(case: Case, directory: str, is_victim: bool) -> None:
    """Collectives, one after the other."""
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring
    from ring_keras import _native

    # A process carries each packet of a link.
    ones = np.ones(30_000 if case.transport == "link" else 1_000_000, np.float32)

    def reduce() -> Any:
        return ring.allreduce(tf.constant(ones), "sum", name="ones")

    function: Callable[[], Any] = {
        "array": lambda: _native.allreduce(ones, "sum", "ones"),
        "eager": reduce,
        "graph": tf.function(reduce),
        "jit": tf.function(reduce, jit_compile=True),
    }[case.work]
    for step in range(STEPS):
        if is_victim and step == STEPS // 2:
            if case.place == "before a collective":
                commit(case, directory)
            elif case.place == "in a collective":
                commit_beside(case, directory)
        total = np.asarray(function())
        assert (total == ring.size()).all()


def fit(case: Case, directory: str, is_victim: bool) -> None:
    """A training that evaluates and saves."""
    import keras
    import numpy as np

    import ring_keras as ring

    class Faulty(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not is_victim or batch != STEPS // 2:
                return
            if case.place == "before a step":
                commit(case, directory)
            elif case.place == "in a step":
                commit_beside(case, directory)

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            if is_victim and case.place == "in an evaluation" and batch == 1:
                commit(case, directory)

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.save_weights(Path(directory, f"{epoch}.weights.h5"))
            if is_victim and case.place == "while saving":
                commit(case, directory)

    x = np.random.default_rng(ring.rank()).normal(size=(4 * STEPS, 8))
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", jit_compile=case.work == "fit with jit")
    model.fit(
        x,
        y,
        batch_size=4,
        epochs=2,
        verbose=0,
        validation_data=(x, y),
        validation_batch_size=8,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
            ring.callbacks.RootOnly(Saves()),
            Faulty(),
        ],
    )
    same = ring.allgather_object([weight.tobytes() for weight in model.get_weights()])
    assert all(weights == same[0] for weights in same)
