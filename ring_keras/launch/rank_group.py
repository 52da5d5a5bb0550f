"""A rank of this host, and what it has started."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable

from ring_keras.launch.guard import RANKS_SIGNALS, Ended, group_members, named
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.workers import signal_group

__all__ = ["RankGroup"]

# What saves its work is done with it, mostly.
_TELLS_AFTER_S = 10.0


class RankGroup:
    """The process group of a rank of this host.

    A rank may be a shell that a signal ends at once, while the program that it has
    started takes its time to save its work. So a rank that was told to end, or died of
    one of `RANKS_SIGNALS`, has ended once nothing of its group runs. One that ended by
    itself is not waited for: what it has left is of no use.

    Args:
        loop: Calls back.
        pid: The rank's process, which leads the group.
        note_end: Gets how it ended, once.
    """

    def __init__(self, loop: Loop, pid: int, note_end: Callable[[Ended], None]) -> None:
        self._loop = loop
        self._pid = pid
        self._note_end = note_end
        self._told_to_end = False
        self._leader: Ended | None = None  # Once it has ended.
        self._tells_at = math.inf
        loop.on_child_end(pid, self._note_leader_end)

    def signal(self, number: int) -> None:
        """Signals all of it."""
        self._told_to_end |= number not in RANKS_SIGNALS
        if self._leader is not None:
            # While one of the group is there, its number is nobody else's.
            if not group_members(self._pid):
                return
            if number == signal.SIGKILL:
                self._leader = self._leader._replace(returncode=-signal.SIGKILL)
        signal_group(self._pid, number)

    def _note_leader_end(self, ended: Ended) -> None:
        self._leader = ended
        if self._told_to_end or -ended.returncode in RANKS_SIGNALS:
            # What has lost its parent is this process's child from then on. A process
            # whose parent has left the group is seen at the next tick.
            self._loop.on_orphan_end(self._look)
            self._loop.on_tick(self._look)
            if not self._told_to_end:  # Else it is killed after a while.
                self._tells_at = time.monotonic() + _TELLS_AFTER_S
            self._look()
        else:
            self._note_end(ended)

    def _look(self) -> None:
        assert self._leader is not None
        left = group_members(self._pid)
        if left and time.monotonic() > self._tells_at:
            self._tells_at = math.inf
            say(
                f"process {self._pid} of a rank was ended by a signal, and ringrun "
                f"waits for what it has started: {named(left)}"
            )
        if not left:
            self._loop.no_orphan_end(self._look)
            self._loop.no_tick(self._look)
            self._note_end(self._leader)
