"""Whoever cannot prove to belong to the job is dropped; the job goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

from support import run_ranks

import ring_keras as ring


def connect_untrusted() -> float:
    """The job runs while untrusted peers talk to its store."""
    ring.init()
    host, _, port = os.environ["RING_KERAS_STORE_ADDRESS"].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as garbage,
        socket.create_connection((host, int(port)), timeout=10),  # Says nothing.
    ):
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 4096)
        total = float(ring.allreduce(1.0, "sum"))
        # The store has closed the connection: end of file, or reset.
        with contextlib.suppress(ConnectionResetError):
            assert garbage.recv(1) == b""
    return total + float(ring.allreduce(1.0, "sum"))


def test_garbage_and_silence_do_not_disturb_the_job() -> None:
    assert run_ranks(connect_untrusted, 2) == [4.0, 4.0]


def join_with_wrong_token() -> None:
    if os.environ["RING_KERAS_RANK"] == "1":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "token")
            path.touch(0o600)
            path.write_text("0" * 64)
            os.environ["RING_KERAS_TOKEN_FILE"] = str(path)
            ring.init()
    else:
        ring.init()


def test_a_wrong_token_is_refused() -> None:
    env = {"RING_KERAS_INIT_TIMEOUT_S": "10"}
    good, bad = run_ranks(join_with_wrong_token, 2, env=env, check=False)
    assert bad.exception_type == "RingKerasError", bad.describe()
    assert "token" in bad.message
    # The other rank learns that rank 1 ended.
    assert good.exception_type == "PeerLostError", good.describe()


def stale_generation() -> None:
    if os.environ["RING_KERAS_RANK"] == "1":
        os.environ["RING_KERAS_GENERATION"] = "41"
    ring.init()


def test_a_rank_of_another_generation_is_refused() -> None:
    env = {"RING_KERAS_INIT_TIMEOUT_S": "10"}
    _, stale = run_ranks(stale_generation, 2, env=env, check=False)
    assert stale.exception_type == "RingKerasError", stale.describe()
    assert "generation" in stale.message
