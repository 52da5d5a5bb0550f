"""A job that hangs, or loses a rank, is explained by what its ranks wrote."""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.processes import wait_until

from ring_keras import _native
from ring_keras.lifecycle.flight_recorder import begin_flight_recorder
from ring_keras.monitoring.analyze.trace_file import read_traces
from ring_keras.monitoring.analyze.verdict import explain

DATA_PY = """
import ctypes
import os
import time

held = ctypes.PyDLL(None)  # Keeps Python's lock while it calls.

def load(marker, holds_lock):
    while not os.path.exists(marker):
        held.sleep(60) if holds_lock else time.sleep(0.05)  # A signal ends both.
"""
LINE = 1 + next(
    number for number, line in enumerate(DATA_PY.splitlines()) if "held.sleep" in line
)


def begin() -> int:
    rank, _ = join()
    begin_flight_recorder(os.environ["RING_KERAS_TRACE_DIR"], rank)
    _native.barrier("all are here")
    return rank


def traces_in(directory: str | Path) -> str:
    return "".join(p.read_text() for p in Path(directory).glob("rank*.trace"))


def skips_a_collective(trace_dir: str) -> None:
    rank = begin()
    one = np.ones(1, np.float32)
    with pytest.raises(RuntimeError, match="gave up after"):
        if rank == 2:
            _native.broadcast(one, 0, "weights")
        else:
            _native.allreduce(one, "sum", "gradients/bucket3")


def stays_in_its_own_code(trace_dir: str, holds_lock: bool) -> None:
    rank = begin()
    signal.signal(signal.SIGUSR1, lambda *_: None)
    pids = _native.allgather(np.array([os.getpid()]), "pids")
    marker = Path(trace_dir, "done")
    one = np.ones(1, np.float32)
    if rank == 1:
        load = runpy.run_path(str(Path(trace_dir, "data.py")))["load"]
        load(str(marker), holds_lock)
        _native.allreduce(one, "sum", "gradients/bucket3")
        return
    reduces = threading.Thread(
        target=_native.allreduce, args=(one, "sum", "gradients/bucket3")
    )
    reduces.start()
    wait_until(lambda: "in load" in traces_in(trace_dir), "rank 1 has written")
    for path in Path(trace_dir).glob("rank*.trace"):
        shutil.copy(path, path.parent / "then" / path.name)
    marker.touch()
    os.kill(int(pids[1]), signal.SIGUSR1)
    reduces.join()


def has_a_file_system_that_hangs(trace_dir: str) -> None:
    """One that takes nothing before somebody reads it."""
    path = Path(trace_dir, f"rank{os.environ['RING_KERAS_RANK']}.trace")
    os.mkfifo(path)
    rank, _ = join()
    _native.barrier("all are here")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with pytest.raises(RuntimeError, match="PeerLostError"):
            _native.allreduce(np.ones(1, np.float32), "sum", "gradients/bucket3")
    finally:
        reader = threading.Thread(target=path.read_text)
        reader.start()
        _native.shutdown("has seen it")
        reader.join()


def ends_by(trace_dir: str, number: int) -> None:
    rank = begin()
    pids = _native.allgather(np.array([os.getpid()]), "pids")
    begun = [Path(trace_dir, f"rank{other}.has_begun") for other in (0, 2)]
    if rank == 1:
        wait_until(lambda: all(path.exists() for path in begun), "the others wait")
        os.kill(os.getpid(), number)

    def tell_rank_1() -> None:
        wait_until(
            lambda: _native.recent_collectives()[-1]["name"] == "gradients/bucket3",
            "the collective has begun",
        )
        Path(trace_dir, f"rank{rank}.has_begun").touch()

    threading.Thread(target=tell_rank_1).start()
    try:
        _native.allreduce(np.ones(1, np.float32), "sum", "gradients/bucket3")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pids[1]), signal.SIGKILL)


def waits_for_a_signal(trace_dir: str) -> None:
    handled = []
    signal.signal(signal.SIGUSR2, lambda *_: handled.append("the program's"))
    rank = begin()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGUSR2)
    # Stacks come last; who ends before writes none.
    wait_until(
        lambda: all(
            waits_for_a_signal.__name__ in Path(trace_dir, f"rank{r}.trace").read_text()
            for r in (0, 1)
        ),
        "both ranks have written",
    )
    assert handled == ["the program's"] * (rank == 0)
    _native.barrier("both have seen it")


def environment(directory: Path, **more: str) -> dict[str, str]:
    return WITHOUT_TENSORFLOW | {"RING_KERAS_TRACE_DIR": str(directory)} | more


STALLS = {"RING_KERAS_STALL_TIMEOUT_S": "0.5", "RING_KERAS_COLLECTIVE_TIMEOUT_S": "3"}


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_a_rank_that_skipped_a_collective(tmp_path: Path, transport: str) -> None:
    env = environment(tmp_path, RING_KERAS_TRANSPORT=transport, **STALLS)
    run_ranks(skips_a_collective, 3, env=env, args=(str(tmp_path),))

    command = [sys.executable, "-X", "importtime", "-m"]
    command += ["ring_keras", "analyze", str(tmp_path)]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )

    assert told.stdout.splitlines()[0] == (
        "Rank 2 is in broadcast 'weights'; "
        "ranks 0 and 1 are in allreduce 'gradients/bucket3'."
    )
    assert "barrier 'all are here'" in told.stdout
    assert "missing ranks: 2" in told.stdout
    assert " tensorflow" not in told.stderr


@pytest.mark.parametrize(
    "holds_lock", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_a_rank_that_stays_in_its_own_code(tmp_path: Path, holds_lock: bool) -> None:
    (tmp_path / "data.py").write_text(DATA_PY)
    (tmp_path / "then").mkdir()
    env = environment(tmp_path, RING_KERAS_STALL_TIMEOUT_S="0.5")
    run_ranks(stays_in_its_own_code, 2, env=env, args=(str(tmp_path), holds_lock))

    traces = read_traces(tmp_path / "then")
    assert explain(traces) == (
        f"Rank 1 stands in data.py:{LINE} (load); "
        "rank 0 is in allreduce 'gradients/bucket3'."
    )
    assert "waited 0.5" in traces[0].why
    assert [trace.lock_held for trace in traces.values()] == [False, holds_lock]


def test_a_file_system_that_hangs_holds_no_error_up(tmp_path: Path) -> None:
    outcomes = run_ranks(
        has_a_file_system_that_hangs,
        3,
        env=environment(tmp_path),
        args=(str(tmp_path),),
        timeout_s=30,
        check=False,
    )
    assert outcomes[2].signal == signal.SIGKILL
    for outcome in outcomes[:2]:
        assert outcome.ok, outcome.describe()


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGSTOP, marks=pytest.mark.slow), signal.SIGKILL],
)
def test_a_rank_that_is_gone(tmp_path: Path, number: int) -> None:
    outcomes = run_ranks(
        ends_by,
        3,
        env=environment(tmp_path),
        args=(str(tmp_path), number),
        check=False,
    )
    assert outcomes[1].signal == signal.SIGKILL

    sentence = explain(read_traces(tmp_path))

    assert sentence.startswith("Rank 1 wrote nothing (rank 1 (host "), sentence
    assert sentence.endswith("ranks 0 and 2 are in allreduce 'gradients/bucket3'."), (
        sentence
    )


def test_a_signal_to_one_rank_has_all_write(tmp_path: Path) -> None:
    run_ranks(waits_for_a_signal, 2, env=environment(tmp_path), args=(str(tmp_path),))

    for trace in read_traces(tmp_path).values():
        assert trace.why == "SIGUSR2"
        assert [one["name"] for one in trace.ended] == ["all are here"]
        assert trace.main_thread in [stack.thread for stack in trace.stacks]
    # A thread that the signal interrupts must not read the others' stacks.
    assert "Current thread" not in traces_in(tmp_path)
