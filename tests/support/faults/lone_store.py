"""A store in a process of its own, which can be killed as no launcher's can."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.job import HEARTBEAT_S


@contextlib.contextmanager
def lone_store(size: int, directory: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Its process's number, and what ranks must know to find it."""
    secret = directory / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--size", str(size), "--secret-file", str(secret)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ring_keras.rendezvous", "--listen", address, *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"RING_KERAS_HEARTBEAT_TIMEOUT_S": HEARTBEAT_S},
    )
    try:
        assert process.stdout is not None
        assert address in process.stdout.readline()
        yield (
            process.pid,
            {
                "RING_KERAS_STORE_ADDRESS": address,
                "RING_KERAS_TOKEN_FILE": str(secret),
            },
        )
    finally:
        process.kill()
        process.communicate(timeout=30)
