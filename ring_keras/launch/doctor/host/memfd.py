"""Whether two processes of this host can share memory as ranks do."""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

# As tf_ops/transport/shm/segment.h has it: address space, not memory.
_SEGMENT_NBYTES = 20 << 30
_NONCE_NBYTES = 16
_TIMEOUT_S = 20

# What a peer does: it opens the memory by its owner's number.
_ATTACH = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(fd, int(sys.argv[2]), flags=mmap.MAP_SHARED | 0x4000)
sys.stdout.write(memory[:int(sys.argv[3])].hex())
"""
_NORESERVE = 0x4000


def check(job: JobShape) -> list[Finding]:
    """Makes such memory, and has another process read what is in it."""
    if config().transport == "tcp":
        text = "RING_KERAS_TRANSPORT=tcp: ranks do not share memory"
        return [Finding("transport shm", State.NOT_APPLICABLE, text)]
    problem, fix = _problem()
    if problem:
        return [
            Finding(
                "transport shm",
                State.WARNING,
                f"{problem}; ranks of this host use TCP instead, which is slower",
                expected="memory that two processes can map",
                fix=fix,
            )
        ]
    text = "two processes shared a memfd, and 20 GiB of address space each"
    return [Finding("transport shm", State.OK, text)]


def _problem() -> tuple[str, str]:
    """What goes wrong, and what fixes it; empty if nothing does."""
    nonce = secrets.token_bytes(_NONCE_NBYTES)
    try:
        fd = os.memfd_create("ring_keras")
    except OSError as error:
        return f"memfd_create: {error.strerror}", "uname -r"
    try:
        try:
            os.ftruncate(fd, _SEGMENT_NBYTES)
        except OSError as error:
            return f"a file of 20 GiB: {error.strerror}", "ulimit -f unlimited"
        flags = mmap.MAP_SHARED | _NORESERVE
        try:
            memory = mmap.mmap(fd, _SEGMENT_NBYTES, flags=flags)
        except OSError as error:
            return f"cannot map 20 GiB: {error.strerror}", "ulimit -v unlimited"
        with memory:
            memory[:_NONCE_NBYTES] = nonce
            path = f"/proc/{os.getpid()}/fd/{fd}"
            sizes = (str(_SEGMENT_NBYTES), str(_NONCE_NBYTES))
            try:
                peer = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", _ATTACH, path, *sizes],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"another process could not try it: {error}", "ulimit -u"
            if peer.returncode == 0 and peer.stdout == nonce.hex():
                return "", ""
            said = peer.stderr.strip().splitlines() or ["it read something else"]
            return f"another process could not map it: {said[-1]}", "mount | grep /proc"
    finally:
        os.close(fd)
