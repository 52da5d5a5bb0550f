"""The store in a process of its own, and ranks that no launcher of ours starts."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RANK = """
import numpy as np
from ring_keras import _native
from ring_keras.config import Config
_native.init(**Config.from_environment().init_options())
print(_native.allreduce(np.ones(2, np.float32), name="x"))
_native.shutdown("done")
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    return file


@pytest.fixture
def store(secret: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The store's process, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = serve("--listen", address, "--size", "2", "--secret-file", str(secret))
    assert process.stdout is not None
    assert address in process.stdout.readline()
    yield process, address
    process.kill()
    process.communicate(timeout=30)


def serve(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["nohup", sys.executable, "-m", "ring_keras.rendezvous", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_ranks(address: str, secret: Path) -> list[str]:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=os.environ
            | {
                "RING_KERAS_RANK": str(rank),
                "RING_KERAS_SIZE": "2",
                "RING_KERAS_STORE_ADDRESS": address,
                "RING_KERAS_TOKEN_FILE": str(secret),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [rank.communicate(timeout=60)[0] for rank in ranks]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_come_one_job_after_another(
    store: tuple[subprocess.Popen[str], str], secret: Path, number: signal.Signals
) -> None:
    process, address = store
    for _ in range(2):
        assert run_ranks(address, secret) == ["[2. 2.]\n"] * 2
    process.send_signal(number)
    assert process.wait(timeout=30) == 0


def test_one_that_nohup_protects_serves_on(
    store: tuple[subprocess.Popen[str], str], secret: Path
) -> None:
    process, address = store
    process.send_signal(signal.SIGHUP)
    assert run_ranks(address, secret) == ["[2. 2.]\n"] * 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("here", "--listen must be HOST:PORT, not here"),
        ("0.0.0.0:4711", "every interface"),
        ("192.0.2.99:4711", "cannot listen on 192.0.2.99:4711"),
    ],
)
def test_an_address_that_cannot_be(secret: Path, listen: str, message: str) -> None:
    process = serve("--listen", listen, "--size", "1", "--secret-file", str(secret))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert message in stderr
