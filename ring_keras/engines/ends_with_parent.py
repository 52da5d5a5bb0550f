"""Runs a command that ends in order when the process that wants it does.

Run as a script, `python -I -S ends_with_parent.py PARENT_PID DIRECTORY COMMAND...`.
Once that process has ended, or has ended this one, the command gets SIGTERM; when it
has ended, the directory is removed. Ends as the command does.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from types import FrameType

PR_SET_PDEATHSIG = 1


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
