"""Python's signal handlers run while `init()` waits, and may end it, wherever it is."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support import engine_only, run_ranks
from support.engine_only import WITHOUT_TENSORFLOW
from support.processes import wait_until

from ring_keras import _native

# How long a rank waits before anything is done to it.
WAITING_S = 0.3

# The handler of a signal that has not ended init() runs after it: too late for these.
ENVIRONMENT = WITHOUT_TENSORFLOW | {"RING_KERAS_INIT_TIMEOUT_S": "600"}
TIMEOUT_S = 30


class TerminatedError(Exception):
    """What a handler raises."""


def nobody_listens() -> list[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return use_as_store(listener.getsockname())


def nobody_answers() -> list[socket.socket]:
    """The kernel takes the connection; nothing that is sent is read."""
    listener = socket.create_server(("127.0.0.1", 0))
    return [listener, *use_as_store(listener.getsockname())]


def nothing_connects() -> list[socket.socket]:
    """The listener's queue is full, so the kernel drops whatever comes."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = listener.getsockname()
    fillers = [socket.create_connection(address)]
    return [listener, *fillers, *use_as_store(address)]


def nobody_comes() -> list[socket.socket]:
    """The store is there, the other rank is not."""
    return []


def use_as_store(address: tuple[str, int]) -> list[socket.socket]:
    os.environ["RING_KERAS_STORE_ADDRESS"] = f"{address[0]}:{address[1]}"
    return []


def send_soon(number: signal.Signals) -> None:
    threading.Timer(WAITING_S, os.kill, (os.getpid(), number)).start()


def handler_raises(stage: Callable[[], list[socket.socket]], directory: Path) -> str:
    def handler(number, frame):
        raise TerminatedError("told so")

    if os.environ["RING_KERAS_RANK"] == "1":
        wait_until((directory / "raised").exists, "rank 0 has raised", 60)
        with pytest.raises(RuntimeError) as info:
            engine_only.join()
        return str(info.value)
    kept = stage()
    signal.signal(signal.SIGTERM, handler)
    send_soon(signal.SIGTERM)
    try:
        engine_only.join()
    except TerminatedError as error:
        assert not _native.is_initialized()
        return str(error)
    finally:
        (directory / "raised").touch()
        for end in kept:
            end.close()
    return "joined"


@pytest.mark.parametrize("stage", [nobody_listens, nobody_answers, nothing_connects])
def test_a_handler_that_raises_ends_init(stage, tmp_path) -> None:
    outcome = run_ranks(
        handler_raises,
        1,
        env=one_of_two(),
        args=(stage, tmp_path),
        timeout_s=TIMEOUT_S,
    )
    assert outcome == ["told so"]


def test_the_other_ranks_are_told_who_was_interrupted(tmp_path) -> None:
    interrupted, peer = run_ranks(
        handler_raises,
        2,
        env=ENVIRONMENT,
        args=(nobody_comes, tmp_path),
        timeout_s=TIMEOUT_S,
    )
    assert interrupted == "told so"
    assert peer.startswith("PeerLostError: [RK201] rank 0 (host ")
    assert "left: its init() failed: it was interrupted: a signal's handler" in peer


def handler_returns(directory: Path) -> int:
    calls = []

    def handler(number, frame):
        _native.is_initialized()  # As any call, it must not wait for init().
        calls.append(number)
        if len(calls) == 3:
            (directory / "handled").touch()

    if os.environ["RING_KERAS_RANK"] == "0":
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, WAITING_S, 0.05)
    else:
        wait_until((directory / "handled").exists, "rank 0 has waited", 60)
    engine_only.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return len(calls)


def test_a_handler_that_returns_changes_nothing(tmp_path) -> None:
    calls, _ = run_ranks(
        handler_returns, 2, env=ENVIRONMENT, args=(tmp_path,), timeout_s=TIMEOUT_S
    )
    assert calls >= 3


def handler_shuts_down(directory: Path) -> str:
    if os.environ["RING_KERAS_RANK"] == "1":
        wait_until((directory / "ended").exists, "rank 0 has given up", 60)
        return "never came"
    signal.signal(signal.SIGTERM, lambda number, frame: _native.shutdown("told so"))
    send_soon(signal.SIGTERM)
    with pytest.raises(RuntimeError) as info:
        engine_only.join()
    (directory / "ended").touch()
    assert not _native.is_initialized()
    return str(info.value)


def test_a_handler_may_call_shutdown(tmp_path) -> None:
    outcome, _ = run_ranks(
        handler_shuts_down, 2, env=ENVIRONMENT, args=(tmp_path,), timeout_s=TIMEOUT_S
    )
    assert outcome.startswith("RingKerasError: [RK209] it was interrupted")


def one_of_two() -> dict[str, str]:
    """A rank whose other one never starts, for tests that need no more than it."""
    return ENVIRONMENT | {"RING_KERAS_SIZE": "2"}
