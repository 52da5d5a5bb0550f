"""Faults of all kinds, at all places, drawn at random: `make test-faults`.

Every rank that is left gets the same named error, soon, and keeps nothing of the job;
or goes on, where the fault is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import RankOutcome, run_ranks

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("FAULTS", "12"))
SEED = int(os.environ.get("FAULT_SEED", "0"))

STEPS = 20
# When what takes a wait to be noticed is.
COLLECTIVE_TIMEOUT_S = 5.0
HEARTBEATS_S = 6.0
NOTICE_S = 5.0
# A rank that cannot end by itself is killed then.
HELD_S = 20.0

DEADLY = ("SIGKILL", "SIGSEGV", "SIGABRT", "exit 0", "exit 3", "raises")
HARMLESS = ("SIGSTOP for a second", "a thread raises")
FAULTS = (*DEADLY, *HARMLESS, "SIGSTOP", "keeps Python's lock")
CALLS = ("array", "eager", "graph", "jit")
AROUND_CALLS = ("before a collective", "in a collective", "in init")
FITS = ("fit", "fit with jit")
IN_FITS = ("before a step", "in a step", "in an evaluation", "while saving")


@dataclass(frozen=True)
class Case:
    """One fault of one rank.

    Attributes:
        fault: One of `FAULTS`.
        place: One of `AROUND_CALLS` or of `IN_FITS`.
        work: What the ranks do: one of `CALLS` or of `FITS`.
        size: How many ranks there are.
        victim: The rank.
        transport: As `RING_KERAS_TRANSPORT`.
    """

    fault: str
    place: str
    work: str
    size: int
    victim: int
    transport: str

    def __str__(self) -> str:
        whose = f"rank {self.victim} of {self.size}"
        return f"{self.fault}, {self.place}, {self.work}, {whose}, {self.transport}"


def draw() -> list[Case]:
    """Cases in random order, none twice."""
    places = [
        *itertools.product(AROUND_CALLS, CALLS),
        *itertools.product(IN_FITS, FITS),
    ]
    cases = [
        Case(fault, place, work, size, victim, transport)
        for fault, (place, work), size, transport in itertools.product(
            FAULTS, places, (2, 3, 4), ("auto", "tcp")
        )
        for victim in range(size)
        if can_be(fault, place, victim)
    ]
    return random.Random(SEED).sample(cases, COUNT)


def can_be(fault: str, place: str, victim: int) -> bool:
    """Whether there is such a case."""
    if place == "while saving" and victim != 0:
        return False  # The first rank does that.
    if place == "in init" and fault == "SIGSTOP":
        return False  # Until it has come, nobody can tell it from one that is slow.
    if place.startswith("in a ") or place == "in init":
        # Where Python does not come by.
        return fault not in ("raises", "keeps Python's lock")
    return True


def commit(case: Case, directory: str) -> None:
    """Does it, in this process."""
    Path(directory, "fault").write_text(str(time.monotonic()))
    pid = os.getpid()
    if case.fault.startswith("SIGSTOP"):
        lasts = case.fault == "SIGSTOP for a second"
        number, seconds = ("CONT", 1) if lasts else ("KILL", HELD_S)
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -{number} {pid}"])
        os.kill(pid, signal.SIGSTOP)
    elif case.fault.startswith("SIG"):
        os.kill(pid, signal.Signals[case.fault])
    elif case.fault.startswith("exit"):
        os._exit(int(case.fault.split()[1]))
    elif case.fault == "raises":
        raise ValueError("bad batch 17")
    elif case.fault == "keeps Python's lock":
        subprocess.Popen(["sh", "-c", f"sleep {HELD_S}; kill -KILL {pid}"])
        ctypes.PyDLL(None).sleep(600)
    else:
        threading.Thread(target=lambda: 1 // 0).start()


def commit_beside(case: Case, directory: str) -> None:
    """Does it in a thread, while this one goes on."""
    delay = random.Random(str(case)).uniform(0, 0.005)
    threading.Timer(delay, commit, (case, directory)).start()


def what_the_job_has() -> tuple[int, int]:
    """Sockets, and segments of shared memory."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            targets.append(str(link.readlink()))
    sockets = sum(target.startswith("socket:") for target in targets)
    return sockets, Path("/proc/self/maps").read_text().count("memfd:ring_keras")


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """After shutdown() a rank has what it had before init()."""
    import ring_keras as ring

    before = what_the_job_has()
    try:
        yield
    finally:
        ring.shutdown()
        after = what_the_job_has()
        assert after == before, f"sockets and segments: {before}, then {after}"


def work(case: Case, directory: str) -> None:
    """What every rank does."""
    import ring_keras as ring

    with nothing_left():
        is_victim = int(os.environ["RING_KERAS_RANK"]) == case.victim
        if is_victim and case.place == "in init":
            commit_beside(case, directory)
        ring.init()
        if case.work in FITS:
            fit(case, directory, is_victim)
        else:
            call(case, directory, is_victim)
        ring.barrier(name="the end")


def call(case: Case, directory: str, is_victim: bool) -> None:
    """Collectives, one after the other."""
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring
    from ring_keras import _native

    ones = np.ones(1_000_000, np.float32)

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
        total = function()
        assert float(total[-1]) == ring.size()


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


@pytest.mark.parametrize("case", draw(), ids=str)
def test_a_fault(tmp_path: Path, case: Case) -> None:
    env = {
        "RING_KERAS_TRANSPORT": case.transport,
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": str(COLLECTIVE_TIMEOUT_S),
    }
    outcomes = run_ranks(
        work, case.size, env=env, args=(case, str(tmp_path)), check=False
    )

    committed_at = float((tmp_path / "fault").read_text())
    victim = outcomes[case.victim]
    if case.fault in HARMLESS:
        assert all(outcome.ok for outcome in outcomes), described(outcomes)
        return
    others = [outcome for outcome in outcomes if outcome is not victim]
    assert not victim.ok
    expected, within_s = "PeerLostError", NOTICE_S
    if case.fault == "keeps Python's lock":
        expected = "CollectiveTimeoutError"
        within_s += COLLECTIVE_TIMEOUT_S
    elif case.fault == "SIGSTOP":
        within_s += HEARTBEATS_S
    sentences = {sentence_of(outcome, expected) for outcome in others}
    assert len(sentences) == 1, described(outcomes)
    assert re.search(rf"\branks? {{?{case.victim}\b", sentences.pop()), described(
        others
    )
    for outcome in others:
        assert outcome.ended_at - committed_at < within_s, described(others)


def sentence_of(outcome: RankOutcome, expected: str) -> str:
    """What the error says; in a function of TensorFlow's its class is TensorFlow's."""
    if outcome.exception_type == expected:
        return outcome.message
    found = re.search(f"{expected}: (.*)", outcome.message)
    assert found, outcome.describe()
    return found[1]


def described(outcomes: list[RankOutcome]) -> str:
    return "\n".join(outcome.describe() for outcome in outcomes)
