"""The file with a job's secret."""

from __future__ import annotations

import os
import stat
import string
from pathlib import Path

from ring_keras.config.errors import ConfigError

__all__ = ["read_token"]

_NBYTES = 32


def read_token(path: str | Path, source: str = "RING_KERAS_TOKEN_FILE") -> bytes:
    """Reads a job's secret.

    Args:
        path: The file.
        source: What names it, for messages.

    Raises:
        ConfigError: If the file cannot be read, is open to anyone but its
            owner, or holds something else.
    """
    variable = f"{source}={path}"
    try:
        # O_NONBLOCK: a named pipe must not make us wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(2 * _NBYTES + 2)
    except OSError as error:
        raise ConfigError(
            f"[RK122] {variable}: cannot read it: {error.strerror}."
        ) from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or mode & 0o077:
        raise ConfigError(
            "[RK122] "
            f"{variable}: must be a regular file that only its owner can read, mode "
            f"0600. Received: mode {mode:04o}. Others may know this secret: start "
            "the job anew with a new one."
        )
    text = content.decode("ascii", errors="replace").strip()
    if len(text) != 2 * _NBYTES or not set(text) <= set(string.hexdigits):
        # The content stays out of the message: it may be the secret, cut short.
        raise ConfigError(
            "[RK122] "
            f"{variable}: must hold {2 * _NBYTES} hexadecimal digits. "
            f"Received: {len(content)} bytes of something else."
        )
    return bytes.fromhex(text)
