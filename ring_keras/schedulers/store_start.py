"""Starts the process that serves the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ring_keras.config import Config, ConfigError
from ring_keras.schedulers.store_card import MAX_NBYTES, StoreCard
from ring_keras.schedulers.waiting import is_readable

__all__ = ["start_store"]

_SCRIPT = str(Path(__file__).with_name("store_process.py"))


def start_store(
    config: Config, bind_address: str, size: int, path: Path | None, deadline: float
) -> StoreCard:
    """Starts it; returns once it serves.

    It ends by itself after this process, and after every other rank that is in the
    job then.

    Args:
        config: Of this process.
        bind_address: Where it listens.
        size: Ranks of the job.
        path: Where it leaves its card for the other ranks, if anywhere.
        deadline: On the monotonic clock.

    Raises:
        ConfigError: If it cannot be started. It has said why itself.
    """
    options = {
        "sys_path": sys.path,
        "parent_pid": os.getpid(),
        "bind_address": bind_address,
        "size": size,
        "path": None if path is None else str(path),
        "encrypts": config.encrypt,
        "heartbeat_s": config.heartbeat_s(),
    }
    process = subprocess.Popen(
        [sys.executable, "-I", _SCRIPT, json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # Signals to this process's group are for the ranks.
        start_new_session=True,
    )
    # It outlives this process: nobody waits for it, and nobody warns of that.
    process.returncode = 0
    assert process.stdout is not None
    with process.stdout as output:
        text = _read_all(output.fileno(), deadline)
    try:
        return StoreCard.from_text(text)
    except ValueError:
        raise ConfigError(
            "[RK124] "
            f"the process that serves the job's store ({process.pid}, listening on "
            f"{bind_address}) did not start: see above for why. If the address is not "
            "one of this host's, set RING_KERAS_BIND_ADDRESS."
        ) from None


def _read_all(descriptor: int, deadline: float) -> str:
    """Until the writer closes it, or until the deadline."""
    content = b""
    while len(content) < MAX_NBYTES:
        if not is_readable(descriptor, deadline):
            break
        piece = os.read(descriptor, MAX_NBYTES)
        if not piece:
            break
        content += piece
    return content.decode("ascii", errors="replace")
