"""Processes that end with the one that wants them, and leave nothing behind.

Run as a script, `python -I -S ends_with_parent.py PARENT_PID DIRECTORY COMMAND...`,
it runs a command that ends in order: once that process has ended, or has ended this
one, the command gets SIGTERM; when it has ended, the directory is removed. Ends as the
command does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
_WATCHED = (signal.SIGCHLD, signal.SIGTERM)


def become_shielded(parent_pid: int) -> None:
    """Returns in a child of this process, which gets SIGTERM when this one ends.

    An engine kills with a worker what that has started, and nothing below it. What
    it kills is this process, which has nothing to do.
    """
    _when_parent_ends(signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    own = os.getpid()
    # Until there is somebody to tell, it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child != 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    _when_parent_ends(signal.SIGTERM)
    if os.getppid() != own:
        os._exit(1)


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
    # Not above: as a script this file finds no package.
    from ring_keras.launch.guard import become_subreaper

    become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _when_parent_ends(signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)
    guard = os.getpid()
    rank = os.fork()
    if rank != 0:
        _guard(rank, directory)
    # What it starts may be killed with it.
    os.setsid()
    _when_parent_ends(signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _guard(rank: int, directory: Path | None) -> None:
    """Until the rank has ended. The job's store may outlive it, in its own session."""
    from ring_keras.launch.guard import kill_descendants, reap

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


def main() -> int:
    """Returns the command's exit code, or 128 plus the signal that ended it."""
    parent_pid, directory, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    become_shielded(parent_pid)
    try:
        child = subprocess.Popen(command)

        def pass_on(number: int, _: FrameType | None) -> None:
            child.send_signal(number)

        signal.signal(signal.SIGTERM, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = child.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _when_parent_ends(number: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
