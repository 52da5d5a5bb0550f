"""Becomes a rank's command, after binding its life to the launcher's.

Run as a script, `python -I -S exec_rank.py LAUNCHER_PID CPUS COMMAND...`, between
the launcher's spawn and the command: code of our own that runs between fork and
exec in the launcher itself would not be safe there.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Replaces this process by the command."""
    launcher_pid, cpus, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"ringrun: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != launcher_pid:  # It died before the call above.
        sys.exit("ringrun: the launcher has died")
    if cpus:
        try:
            os.sched_setaffinity(0, map(int, cpus.split(",")))
        except OSError as error:
            sys.exit(f"ringrun: --bind-to cores: CPUs {cpus}: {error.strerror}")
    # Python ignores these, and an ignored signal stays so through exec. Who starts
    # this, such as a notebook, may ignore Ctrl-C, and sends it on when it is asked to.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"ringrun: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
