"""A line to an agent that waits has ended: whether the agent has, too."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from ring_keras.launch import call


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_nobody_listens_where_an_agent_has_ended(listener: socket.socket) -> None:
    place = listener.getsockname()
    listener.close()

    assert not call._answers(*place)


def test_an_agent_that_was_there_is_not_waited_for(
    listener: socket.socket, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("ab" * 32)
    port = listener.getsockname()[1]
    listener.close()

    assert call.main([f"127.0.0.1:{port}", str(secret), call.DOOR]) == 0


def test_an_agent_that_is_there_speaks(listener: socket.socket) -> None:
    def challenge() -> None:
        with listener.accept()[0] as peer:
            peer.sendall(b"who is there?")

    thread = threading.Thread(target=challenge)
    thread.start()

    assert call._answers(*listener.getsockname())
    thread.join()
    listener.close()


def test_an_agent_that_is_ending_says_nothing(listener: socket.socket) -> None:
    closer = threading.Timer(0.2, listener.close)
    closer.start()

    assert not call._answers(*listener.getsockname())
    closer.join()


def test_a_busy_agent_may_be_there(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "_ANSWER_TIMEOUT_S", 0.1)

    assert call._answers(*listener.getsockname())
    listener.close()
