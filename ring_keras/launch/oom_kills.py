"""Whether the kernel ended a rank for lack of memory.

To a parent, a process that the kernel's OOM killer chose was killed by SIGKILL, as
by anybody. The kernel counts its choices, and names them in its log.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

from ring_keras.launch.control_group import MemoryCgroup, counter

__all__ = ["OomKills"]

_RECORD_NBYTES = 8192  # The longest that the kernel writes.
# The first pid namespace, whose numbers the kernel's log has.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_KILLED = re.compile(
    rb"(Memory cgroup )?out of memory.*: Killed process (\d+) ", re.IGNORECASE
)
_SIGKILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # The latter: under a shell.


class OomKills:
    """What the OOM killer does from here on, on this host and in our cgroup.

    Args:
        proc: Where the kernel shows processes.
        kernel_log: Its log.
    """

    def __init__(
        self, proc: Path = Path("/proc"), kernel_log: Path = Path("/dev/kmsg")
    ) -> None:
        self._cgroup = MemoryCgroup.of_this_process(proc)
        self._in_cgroup = _Rise(*self._cgroup.oom_counter) if self._cgroup else None
        self._on_host = _Rise(proc / "vmstat", "oom_kill")
        self._log = _KernelLog(proc, kernel_log)

    def describe(self, pid: int, returncode: int, peak_nbytes: int) -> str:
        """What memory had to do with the end of a child that ended badly.

        Args:
            pid: Of the child.
            returncode: Negative for a signal.
            peak_nbytes: The most memory that it had.

        Returns:
            Something to follow how it ended; empty if there is nothing to say.
        """
        of_what = self._log.take(pid)
        if returncode not in _SIGKILLED:
            if self._in_cgroup is None or not (kills := self._in_cgroup.take()):
                return ""
            self._on_host.take(kills)
            whom = "a process" if kills == 1 else f"{kills} processes"
            return f"; before, the kernel's OOM killer killed {whom} of its cgroup"
        in_cgroup = self._in_cgroup is not None and self._in_cgroup.take(1)
        on_host = self._on_host.take(1)
        peak = f"its peak memory was {_in_units(peak_nbytes)}"
        if in_cgroup or of_what:
            limit = self._cgroup.limit_nbytes() if in_cgroup and self._cgroup else None
            why = f"{of_what or 'the host'} had no more memory"
            if limit is not None:
                why = f"its cgroup is limited to {_in_units(limit)}"
            return f": the kernel's OOM killer chose it, as {why}; {peak}"
        if on_host:
            return f": perhaps the kernel's OOM killer chose it; {peak}"
        if not self._on_host.known:
            return f": whether for lack of memory cannot be seen here; {peak}"
        return (
            ": not by the kernel's OOM killer, so by a person, a scheduler at a limit, "
            f"or a daemon such as systemd-oomd; {peak}"
        )


def _in_units(nbytes: int) -> str:
    """Such as 1.5 GiB."""
    return (
        f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
    )


class _Rise:
    """How far a counter of the kernel has risen since this was made.

    Args:
        file: Holds the counter.
        word: Before the number.
    """

    def __init__(self, file: Path, word: str) -> None:
        self._where = (file, word)
        self._taken = counter(file, word)

    @property
    def known(self) -> bool:
        """Whether there is such a counter."""
        return self._taken is not None

    def take(self, most: int | None = None) -> int:
        """How far it has risen, or `most`; what has been taken does not come again."""
        now = counter(*self._where)
        if now is None or self._taken is None:
            return 0
        rise = now - self._taken
        if most is not None:
            rise = min(rise, most)
        self._taken += rise
        return rise


class _KernelLog:
    """What the kernel logs from here on, if we may read it.

    Args:
        proc: Where the kernel shows processes.
        path: The log.
    """

    def __init__(self, proc: Path, path: Path) -> None:
        self._fd: int | None = None
        self._of_what: dict[int, str] = {}
        with contextlib.suppress(OSError):
            # In a container the log may be the host's, and pids are not.
            namespace = (proc / "self" / "ns" / "pid").readlink()
            if str(namespace) == _FIRST_PID_NAMESPACE:
                self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._fd, 0, os.SEEK_END)

    def take(self, pid: int) -> str | None:
        """What had no more memory when that process was killed for it; or None."""
        self._read()
        return self._of_what.pop(pid, None)  # The next of that pid is another.

    def _read(self) -> None:
        while self._fd is not None:
            try:
                record = os.read(self._fd, _RECORD_NBYTES)
            except BlockingIOError:  # No more yet.
                return
            except BrokenPipeError:  # What came next was overwritten.
                continue
            except OSError:
                return
            if not record:
                return
            if found := _KILLED.search(record):
                of_what = "its cgroup" if found[1] else "the host"
                self._of_what[int(found[2])] = of_what
