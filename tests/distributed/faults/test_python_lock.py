"""Whoever holds Python's lock holds up no other rank, and no wait keeps it."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join, rank_and_size
from support.job import light_environment
from support.processes import stop, wait_until
from support.python_lock import Pipes, make_pipes, while_python_is_held_up
from support.rank_pool import RankPools

from ring_keras import _native

# More than goes by in one round.
COUNT = 1 << 20
# Of collectives whose outputs' shapes are known when all ranks have met: how often
# which value comes, where rank r gives r + 1.
EXPECTED = {
    "allgather": ([1, 2], COUNT),
    "reduce_scatter": ([3], COUNT // 2),
    "alltoall": ([1, 2], COUNT // 2),
}


def call_each(pipes: Pipes) -> None:
    rank, _ = rank_and_size()
    array = np.full(COUNT, rank + 1, np.float32)
    for kind, (values, count) in EXPECTED.items():
        call = functools.partial(getattr(_native, kind), array, name=kind)
        result = while_python_is_held_up(pipes, kind, call)
        received = result[0] if kind == "alltoall" else result
        np.testing.assert_array_equal(received, np.repeat(values, count))


@pytest.mark.parametrize(
    "transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)]
)
def test_a_rank_whose_python_is_held_up_takes_part(
    transport: str, rank_pool: RankPools, tmp_path: Path
) -> None:
    env = WITHOUT_TENSORFLOW | {
        "RING_KERAS_TRANSPORT": transport,
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": "20",
    }
    rank_pool(2, env=env).run(call_each, args=(make_pipes(tmp_path),))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """A store that can be stopped: its process, and how ranks find it."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    command = [sys.executable, "-m", "ring_keras.rendezvous", "--size", "2"]
    command += ["--listen", address, "--secret-file", str(secret)]
    with subprocess.Popen(
        command, env=light_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "may come" in process.stdout.readline()
            yield (
                process.pid,
                {
                    "RING_KERAS_STORE_ADDRESS": address,
                    "RING_KERAS_TOKEN_FILE": str(secret),
                },
            )
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def make_and_free_while_another_thread_leaves(store: int, left: str) -> list[float]:
    """Rank 0's shutdown() waits for a store that a third thread wakes.

    It does so when this one does not get on, which takes that Python goes on.
    """
    rank, _ = join()
    kept = _native.shared_empty([1 << 20], np.float32)
    kept[:] = rank
    _native.barrier("all are here")
    if rank == 1:
        wait_until(Path(left).exists, "rank 0 has left")
        return [float(kept.sum())]
    rounds = 0
    ended = threading.Event()
    woken = threading.Event()

    def wake_the_store() -> None:
        before = -1
        while not ended.wait(0.3) and before != rounds:
            before = rounds
        if not ended.is_set():
            woken.set()
        os.kill(store, signal.SIGCONT)

    stop(store)
    threads = [
        threading.Thread(target=wake_the_store),
        threading.Thread(target=_native.shutdown, args=("is done",)),
    ]
    for thread in threads:
        thread.start()
    with pytest.raises(RuntimeError, match="NotInitializedError"):
        while True:
            _native.shared_empty([rounds % 5000], np.float32)
            rounds += 1
    ended.set()
    for thread in threads:
        thread.join()
    Path(left).touch()
    assert woken.is_set(), "Python stood still while a shared array was waited for"
    # What was made outlives the job.
    return [float(kept.sum())]


def test_python_goes_on_while_a_shared_array_waits_for_shutdown(
    store: tuple[int, dict[str, str]], tmp_path: Path
) -> None:
    pid, env = store
    sums = run_ranks(
        make_and_free_while_another_thread_leaves,
        2,
        env=WITHOUT_TENSORFLOW | env,
        args=(pid, str(tmp_path / "left")),
    )
    assert sums == [[0.0], [float(1 << 20)]]
