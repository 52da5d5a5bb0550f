"""No process outlives the job, whichever process of it is killed.

ringrun is two processes. The front is the one a user sees and signals; the
launcher is its child and does the work. Both are subreapers, so every process
that a rank starts, even one that leaves its session, stays below them. If the
launcher dies, the front kills what is left; if the front dies, the launcher
does. If both die at once, the kernel kills the ranks themselves (exec_rank.py).

The one exception are agents that keep their ranks for another launcher: see
`keep_from_above`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

# A command of this name, and what is below it, ends by itself.
_KEPT = b"ringrun-kept"

# They are for the ranks: a scheduler's warning that the time is nearly up, or what
# the user's script takes them for.
RANKS_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

# Passed on to the launcher, which alone decides what they mean.
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *RANKS_SIGNALS)

# A process that does not die of SIGKILL hangs in the kernel: give up on it.
KILL_TIMEOUT_S = 5.0
_KILL_POLL_S = 0.01

_told_of: set[int] = set()  # Processes that are left; all that this one knows.


class Ended(NamedTuple):
    """How a child of this process ended.

    Attributes:
        pid: Its process id.
        returncode: Negative for a signal.
        peak_nbytes: The most memory that it, or one of its children, had.
    """

    pid: int
    returncode: int
    peak_nbytes: int


def run_guarded(
    launcher: Callable[[int, Path], int],
    what: str = "launcher process",
    then: str = "the ranks were killed",
) -> int:
    """Runs `launcher` in a child process, and leaves nothing behind.

    Must be called while this process has one thread.

    Args:
        launcher: Gets a descriptor that reads end of file once this process
            has died, and a directory of its own that is removed in the end.
            Runs with `FORWARDED_SIGNALS` blocked, until it unblocks them.
        what: How a message calls it.
        then: What has happened once it was killed.

    Returns:
        What `launcher` returned, or 128 plus the signal that killed it; 1, once that
        is said, if this machine does not let it run.
    """
    try:
        become_subreaper()
        directory = _private_directory()
    except OSError as error:
        print(f"ringrun: [RK818] cannot begin: {error}", file=sys.stderr)
        return 1
    alive_read, alive_write = os.pipe()
    # Until both sides are ready, a signal waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        launcher_pid = os.fork()
        if launcher_pid == 0:
            os.close(alive_write)
            _be_launcher(launcher, alive_read, directory)
        os.close(alive_read)
        return _be_front(launcher_pid, what, then)
    finally:
        remove_directory(directory)


def open_standard_descriptors() -> None:
    """Opens those that are closed: what is opened next would be taken for one."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # The lowest that is free.
            os.set_inheritable(null, True)


def remove_directory(directory: Path) -> None:
    """Removes what `run_guarded` has made."""
    shutil.rmtree(directory, ignore_errors=True)


def heard_signals() -> list[signal.Signals]:
    """Those of `FORWARDED_SIGNALS` that act; to ask before any handler is there.

    What was ignored when this process began stays so: nohup, and a shell that starts
    a command in the background, protect it in this way.
    """
    return [
        number
        for number in FORWARDED_SIGNALS
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN
    ]


def kill_descendants(*, tells: bool = True) -> bool:
    """Kills every process below this one, and waits until they are gone.

    Those that this user may not kill, such as what sudo has started, go on. Each is
    told of once; not at all unless `tells`.

    Returns:
        Whether all are gone.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    others: set[int] = set()
    while descendants := set(_descendants(os.getpid())) - others:
        # What starts between the listing and the kill is in the next listing.
        for pid in descendants:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                others.add(pid)
        while reap() is not None:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(_KILL_POLL_S)
    if tells and others - _told_of:
        _tell_of(others - _told_of)
    return not others


def named(pids: Iterable[int]) -> str:
    """Processes, for messages."""
    return ", ".join(f"{pid} ({_command_name(pid)})" for pid in sorted(pids))


def group_members(group: int) -> list[int]:
    """Live processes of that group below this one, which this user may signal."""
    return [pid for pid in _descendants(os.getpid(), group) if _may_signal(pid)]


def reap() -> Ended | None:
    """Takes one ended child, ours or adopted; None if no child has ended."""
    try:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    if not pid:
        return None
    return Ended(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)


def _be_launcher(
    launcher: Callable[[int, Path], int], alive_fd: int, directory: Path
) -> None:
    status = 1
    try:
        # Out of the terminal's reach: its Ctrl-C goes to the front alone, which
        # passes it on once.
        os.setsid()
        become_subreaper()
        # It is not needed, and errors would bring it: without, they are RuntimeErrors.
        sys.modules.setdefault("tensorflow", None)  # type: ignore[arg-type]
        status = launcher(alive_fd, directory)
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The front's own frames are on this stack: they must not run twice.
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # It was closed when this process began.
                    with contextlib.suppress(OSError):
                        stream.flush()
            kill_descendants()
        finally:
            os._exit(status)


def _be_front(launcher_pid: int, what: str, then: str) -> int:
    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher_pid, number)

    for number in heard_signals():
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    # It stays a zombie until the handlers above are harmless: no other process
    # can get its pid meanwhile. As a container's first process, this one has others'
    # orphans for children, too.
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None:
        if ended.si_pid == launcher_pid:
            break
        os.waitpid(ended.si_pid, 0)
    for number in FORWARDED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(launcher_pid, 0)
    code = os.waitstatus_to_exitcode(status)
    kill_descendants(tells=code < 0)  # Else the launcher has done so.
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    text = f"ringrun: its {what} was killed by {name}; {then}"
    print(text, file=sys.stderr)
    return 128 - code


def _tell_of(others: set[int]) -> None:
    _told_of.update(others)
    text = f"ringrun: processes that it may not kill are left: {named(others)}"
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _command_name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "ended"


def _private_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="ringrun-"))
    except OSError:  # In a container whose file system is only to be read, say.
        return Path(tempfile.mkdtemp(prefix="ringrun-", dir="/dev/shm"))


def become_subreaper() -> None:
    """Processes that lose their parent below this one become its children."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_from_above() -> None:
    """The processes above this one end without it, and what is below it.

    Those that it forks are kept, too; those that execute a program are not.
    """
    with contextlib.suppress(PermissionError):  # It leads its group already.
        os.setsid()
    _prctl(PR_SET_NAME, _KEPT)


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl: {os.strerror(error)}")


def _descendants(ancestor: int, group: int | None = None) -> Iterator[int]:
    """Live processes below `ancestor`, but for those that are kept from above.

    Those of that process group; None: all.
    """
    children: dict[int, list[int]] = {}
    left_out = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The command's name, in parentheses, may hold anything.
            head, _, rest = (entry / "stat").read_bytes().rpartition(b")")
            if head.endswith(b"(" + _KEPT):
                continue
            fields = rest.split()
            pid, state, parent = int(entry.name), fields[0], int(fields[1])
            children.setdefault(parent, []).append(pid)
            if state == b"Z" or group not in (None, int(fields[2])):
                left_out.add(pid)
    frontier = [ancestor]
    while frontier:
        below = children.get(frontier.pop(), [])
        frontier += below
        yield from (pid for pid in below if pid not in left_out)
