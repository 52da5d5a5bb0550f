"""A rank's process, and one above it that leaves nothing of it behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path

from ring_keras.launch.exec_rank import PR_SET_PDEATHSIG
from ring_keras.launch.guard import become_subreaper, kill_descendants, reap

__all__ = ["become_guarded"]

_WATCHED = (signal.SIGCHLD, signal.SIGTERM)


def become_guarded(directory: Path | None = None) -> None:
    """Returns in a child of this process, which itself ends here, as that child does.

    Once this process gets SIGTERM, or the thread that started it has ended, all that
    was started below it is killed. Must be called while there is one thread.

    Args:
        directory: Is removed at the end.
    """
    # Whoever started the engine may ignore it, and then it would never come.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    parent = os.getppid()
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    guard = os.getpid()
    rank = os.fork()
    if rank != 0:
        _guard(rank, directory)
    # What it starts may be killed with it.
    os.setsid()
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _guard(rank: int, directory: Path | None) -> None:
    """Until the rank has ended. The job's store may outlive it, in its own session."""
    while signal.sigwait(_WATCHED) == signal.SIGCHLD:
        if os.waitid(os.P_PID, rank, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            # Not reaped yet, so that nobody else has its number.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank, signal.SIGKILL)
        while (ended := reap()) is not None:
            if ended.pid != rank:
                continue
            _remove(directory)
            if ended.returncode < 0:
                _die_by(-ended.returncode)
            os._exit(ended.returncode)
    kill_descendants()
    _remove(directory)
    _die_by(signal.SIGKILL)


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _die_by(number: int) -> None:
    with contextlib.suppress(OSError):  # Of SIGKILL nothing can be changed.
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _die_with_parent(number: signal.Signals) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl: {os.strerror(error)}")
