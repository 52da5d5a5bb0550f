"""Who is in an elastic job: decides when its next generation begins, and with whom."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ring_keras.launch.connection import BEYOND_HEARTBEAT_S
from ring_keras.launch.desk import CannotStartError, Desk, require_route
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.elastic_socket import Tell
from ring_keras.launch.fleet import Fleet
from ring_keras.launch.last_generation import last_generation
from ring_keras.launch.majority import are_enough
from ring_keras.launch.members import Ending, Members
from ring_keras.launch.workers import Worker, how_ended

__all__ = ["TOO_FEW", "ElasticMembers"]

TOO_FEW = 75
"""ringrun's exit code when a job cannot go on, and could later: EX_TEMPFAIL."""

# How long a process may take to join again that the store has given up: it may have
# failed to begin a generation. A stopped one never does.
_LOST_S = 5.0
# How often the ranks meet because some are to leave, at most.
_CALL_AGAIN_S = 10.0
# So many replacements in a row that end before they have joined are the last.
_MAX_STILLBORN = 3


@dataclass
class _Process:
    worker: Worker
    tell: Tell | None = None
    waits: bool = False
    """Whether it has asked to join, and is in no generation."""
    rank: int | None = None
    """In the generation that it was in last; None: in none yet."""
    has_state: bool = False
    """Whether it can go on alone: it was there from the beginning, or has taken the
    others' state."""
    given_up_at: float | None = None
    killed: bool = False
    left_at: float | None = None
    """Since when the others do without it, because its host is given back."""
    lost: str = ""
    """How it has ended, if the others are not done."""

    @property
    def seems_done(self) -> bool:
        """Whether it has ended well, as far as is known."""
        worker = self.worker
        return worker.returncode == 0 and not worker.told_to_stop and not self.lost


class ElasticMembers(Members):
    """Gives each generation a store of its own, and its ranks their numbers.

    In what it is told, and tells, ranks are the numbers of processes, which they keep.

    Args:
        options: How many there may be.
        desk: The launcher's.
        store_host: The address on which stores listen.
        fleet: Where processes are started.
    """

    def __init__(
        self,
        options: ElasticOptions,
        desk: Desk,
        store_host: str,
        fleet: Fleet,
    ) -> None:
        super().__init__(desk, store_host)
        self._options = options
        self._say = desk.output.say
        self._fleet = fleet
        self._size = min(options.size, fleet.slots)
        self._processes: dict[int, _Process] = {}
        self._members: list[_Process] = []
        self._generation = 0
        self._changes = 0
        self._started = 0
        self._unreached = 0
        """How many of the members may be another launcher's, which took over others."""
        self._undecided_since: float | None = None
        self._had_state = False
        self._forming_since: float | None = None
        self._losses = 0
        self._last_lost: _Process | None = None
        self._suspects: list[_Process] = []
        self._stillborn = 0
        self._next_call_at = 0.0
        self._next_start_at = 0.0
        self._ending: Ending | None = None

    @property
    def joined(self) -> bool:
        """Whether a process has been in a generation."""
        return any(process.rank is not None for process in self._processes.values())

    @property
    def arrivals(self) -> tuple[int, int] | None:
        """How many of how many wait for the first generation; None once it is there."""
        if self._generation:
            return None
        return sum(process.waits for process in self._members), len(self._members)

    @property
    def leaves_ranks(self) -> bool:
        """Whether this launcher has lost them all, and does not know that of each."""
        if self._desk.options.tenure is None:
            return False
        workers = [process.worker for process in self._members]
        cut_off = any(worker.may_run for worker in workers)
        return cut_off and not any(worker.running for worker in workers)

    def begin(self) -> None:
        """Starts the processes that the job begins with, and those to come."""
        tenure = self._desk.options.tenure
        if tenure is not None and tenure.taken_over:
            self._take_over()
            return
        if self._size < self._options.min_size:  # One was lost once it was ready.
            raise CannotStartError(
                f"there are fewer than --min-np {self._options.min_size} slots "
                f"({self._size}) on hosts that are there"
            )
        if self._size > 1:
            require_route(self._store_host)
        self._desk.output.hold()
        self._fleet.begin(self._take_join)
        # Times run out, too, without that anything happens.
        self._desk.loop.on_tick(self._fleet.advance)
        for _ in range(self._size):
            self._members.append(self._start_one())
        self._fill(time.monotonic())

    def _take_over(self) -> None:
        """Goes on with the processes that another launcher has left: they meet anew."""
        found = self._fleet.found()
        if not found:
            raise CannotStartError("its agents have no ranks")
        last = last_generation(found)
        self._generation, self._changes = last.number, last.changes
        self._started = last.started
        for one in found:
            rank = last.ranks.get(one.worker.rank, one.rank)
            process = _Process(one.worker, one.tell, rank=rank)
            process.has_state = one.has_state
            self._processes[one.worker.rank] = process
        self._members = [self._processes[one.worker.rank] for one in last.members]
        tenure = self._desk.options.tenure
        if tenure is not None and tenure.by_majority:
            self._unreached = len(last.ranks) - len(last.members)
        self._had_state = any(process.has_state for process in self._members)
        for one in last.others:
            one.worker.outlived |= not one.worker.running
            if one.worker.told_to_stop:
                self._processes[one.worker.rank].left_at = time.monotonic()
        self._desk.output.hold()
        self._fleet.begin(self._take_join)
        self._desk.loop.on_tick(self._fleet.advance)
        self._desk.watch.note_ranks([process.worker for process in self._members])
        for process in self._members:
            worker = process.worker
            # It may have ended while there was no launcher.
            if worker.returncode is not None and not worker.told_to_stop:
                how = how_ended(worker.returncode) + worker.remark
                self.report_exit(worker.rank, how)
        for one in found:
            if one.asks is not None:
                self._take_join(one.worker.rank, one.asks, one.tell)
        self._call(self._members)

    def report_exit(self, number: int, how: str) -> None:
        """A process has ended."""
        process = self._processes[number]
        worker = process.worker
        is_member = process in self._members
        if is_member and process.rank is not None and self._store is not None:
            self._store.report_exit(process.rank, how)
        if worker.told_to_stop:
            return
        if process.seems_done and is_member:
            return  # What the others do will tell.
        is_stillborn = process.rank is None and not is_member
        worker.outlived |= is_stillborn  # Nobody has ever counted on it.
        self._lose(process, how)
        # What its host has ended says nothing of the command.
        if not is_stillborn or worker.lost_with or worker.told_by_host:
            return
        self._stillborn += 1
        if self._stillborn == _MAX_STILLBORN:
            self._say(
                f"elastic: no more processes are started: {_MAX_STILLBORN} in a row "
                "have ended before they joined"
            )

    def advance(self, now: float) -> Ending | None:
        """Does what is due; whether the job must end."""
        living = [process for process in self._members if process.worker.running]
        if not living:
            # Those that came later have nothing to go on from.
            if self.leaves_ranks:
                self._say(
                    "elastic: all ranks are cut off. They wait for a while for "
                    "`ringrun --take-over`, with the job's card"
                )
            return Ending()
        everyone_waits = all(process.waits for process in living)
        early = [process for process in self._members if process.seems_done]
        if early and not everyone_waits:
            # The others may be about to end, too, in whatever time that takes; unless
            # one of them waits for the rest.
            self._kill_stragglers(now)
            self._give_up_silent(living, now)
            if not self._has_waited_long(living, now):
                return None
            return self._give_up_late(living, 0)
        for process in early:
            self._lose(process, "exited with code 0 while the others were not done")
        if everyone_waits and self._had_state and not any(p.has_state for p in living):
            # Nor have those that have joined, and have not taken the others' state.
            why = "all processes that had the state of the job are lost"
            if any(process.worker.failed for process in self._members):
                self._say(f"elastic: {why}")
                return Ending()
            self._suspects = list(self._members)
            return Ending(why, 1, cause=self._cause)
        self._dismiss([p for p in self._newcomers() if p.worker.leaving], now)
        self._fill(now)
        self._kill_stragglers(now)
        if len(living) + self._most_to_come() < self._options.min_size:
            return self._end(
                f"fewer than --min-np {self._options.min_size} ranks are left "
                f"({len(living)}), and no others will come",
                self._cause,
            )
        waited_long = self._has_waited_long(living, now)
        if self._forming_since is None:
            self._call_leavers(living, now)
            return None
        coming = [p for p in self._newcomers() if p.waits]
        enough = len(living) + len(coming) >= self._options.min_size
        if everyone_waits and enough and not self._may_decide(living):
            return self._await_others(now)
        if everyone_waits and enough:
            # Survivors come first; hosts that came back may have brought too many.
            staying = self._staying(living, coming)[: self._options.max_size]
            self._dismiss([p for p in living + coming if p not in staying], now)
            return self._form(staying)
        self._give_up_silent(living, now)
        return self._give_up_late(living, len(coming)) if waited_long else None

    def _may_decide(self, living: list[_Process]) -> bool:
        """Whether no other launcher can go on with those that are cut off from this."""
        tenure = self._desk.options.tenure
        if tenure is None or not tenure.card.has_heirs or not self._generation:
            return True
        cut_off = sum(process.worker.may_run for process in self._members)
        ranks = [process.rank for process in living]
        return are_enough(ranks, cut_off + self._unreached)

    def _await_others(self, now: float) -> Ending | None:
        """Another launcher may have them by now: then this one hears of it, or ends."""
        self._undecided_since = self._undecided_since or now
        outage_s = self._desk.options.all_silent_s + BEYOND_HEARTBEAT_S
        if now - self._undecided_since < outage_s:
            return None
        return self._end(
            "half of the ranks, or more, are cut off, and others may go on with them "
            "(--heirs)",
            self._cause,
        )

    def _has_waited_long(self, living: list[_Process], now: float) -> bool:
        """Whether the first of them that waits has done so for --elastic-timeout."""
        if not any(process.waits for process in living):
            self._forming_since = None
            return False
        if self._forming_since is None:
            self._forming_since = now
        return now - self._forming_since >= self._options.timeout_s

    def _lose(self, process: _Process, how: str) -> None:
        process.lost = how
        self._losses += 1
        self._last_lost = process
        wait_s = self._options.cooldown_after_s(self._losses)
        self._next_start_at = time.monotonic() + wait_s
        if self._ending is None:
            self._say(f"elastic: {_named(process)} {how}")

    def ended_ranks(self) -> list[tuple[int, str, bool]]:
        """What the store says of the generation there is: see its `ended_ranks`."""
        if self._store is None:
            return []
        return [
            (self._members[rank].worker.rank, text, lost)
            for rank, text, lost in self._store.ended_ranks()
        ]

    def finish(self) -> None:
        """The same, and no host is needed any more."""
        self._fleet.finish()
        super().finish()
        self._desk.output.release()

    def _take_join(self, number: int, has_state: bool, tell: Tell) -> None:
        """A process asks to join; it has left the generation it was in."""
        process = self._processes.get(number)
        if process is None:
            return
        process.tell, process.waits, process.given_up_at = tell, True, None
        process.has_state = has_state
        self._had_state = self._had_state or has_state
        if self._ending is not None:
            self._tell_end(process)
        elif process not in self._members:
            self._call(self._members)

    def _form(self, members: list[_Process]) -> Ending | None:
        """Begins the next generation; survivors come first, in their order."""
        if self._generation and members != self._members:
            self._changes += 1  # Those that only meet anew are the same.
        limit = self._options.reset_limit
        if limit is not None and self._changes > limit:
            return self._end(f"the ranks changed more than --reset-limit {limit} times")
        self.close()
        self._generation += 1
        size = len(members)
        self._store = None
        address = None
        if size > 1:
            try:
                address = self._open_store(size, self._generation)
            except (OSError, RuntimeError) as error:
                return self._end(f"there is no store for {size} ranks: {error}")
        for process in self._members:
            process.worker.outlived |= not process.worker.running
        if self._generation > 1:
            self._say(f"elastic: going on with {_count(size)}")
        self._members, self._unreached = members, 0
        self._desk.watch.note_ranks([process.worker for process in members])
        self._forming_since = self._undecided_since = None
        has_state = any(process.has_state for process in members)
        # For another launcher, should this one be lost.
        facts: dict[str, Any] = {"changes": self._changes, "started": self._started}
        if self._desk.options.tenure is not None:
            facts["members"] = [process.worker.rank for process in members]
        for rank, process in enumerate(members):
            # Those that the job begins with say nothing of what comes later.
            if process.rank is None and self._generation > 1:
                self._stillborn = 0
            process.rank, process.waits = rank, False
            assert process.tell is not None
            process.tell(
                {
                    "rank": rank,
                    "size": size,
                    "generation": self._generation,
                    "store": address,
                    "late": has_state and not process.has_state,
                    **facts,
                }
            )
        return None

    def _staying(
        self, living: list[_Process], coming: list[_Process]
    ) -> list[_Process]:
        """Who is in the next generation: all, or those whose hosts stay, if enough."""
        everyone = living + coming
        staying = [process for process in everyone if not process.worker.leaving]
        have_state = not self._had_state or any(p.has_state for p in staying)
        if have_state and len(staying) >= self._options.min_size:
            return staying
        return everyone

    def _call_leavers(self, living: list[_Process], now: float) -> None:
        """Has all meet again if some can leave then, unless others lack the state."""
        rest = [process for process in living if not process.worker.leaving]
        coming = sum(process.waits for process in self._newcomers())
        enough = len(rest) + coming >= self._options.min_size
        if len(rest) < len(living) and enough and now >= self._next_call_at:
            self._next_call_at = now + _CALL_AGAIN_S
            self._call(living)

    def _call(self, members: list[_Process]) -> None:
        for member in members:
            if member.tell is not None and not member.waits:
                member.tell({"others_wait": True})

    def _dismiss(self, leavers: list[_Process], now: float) -> None:
        """These are in no further generation; they end."""
        for process in leavers:
            process.left_at = now
            process.worker.outlived = True
            process.worker.signal(signal.SIGTERM)
            if process.waits and process.tell is not None:
                process.tell({"end": "the others do without this process"})

    def _start_one(self) -> _Process:
        number = self._started
        worker = self._fleet.add(number, self._size)
        self._started += 1
        process = self._processes[number] = _Process(worker)
        self._desk.watch.note_start(worker)
        return process

    def _fill(self, now: float) -> None:
        while now >= self._next_start_at and self._vacancies() > 0:
            try:
                process = self._start_one()
            except OSError as error:  # The others need not end for it.
                self._losses += 1
                self._next_start_at = now + self._options.cooldown_after_s(self._losses)
                self._say(f"elastic: cannot start a process: {error}")
                return
            if self._losses:
                self._say(f"elastic: started {_named(process)}")

    def _newcomers(self) -> list[_Process]:
        return [
            process
            for process in self._processes.values()
            if process.worker.running
            and process not in self._members
            and process.left_at is None
        ]

    def _wanted(self) -> int:
        """How many processes there should be besides those that run."""
        most = self._options.max_size
        if most is None or self._stillborn >= _MAX_STILLBORN:
            return 0
        running = sum(
            process.worker.running and not process.worker.leaving
            for process in self._processes.values()
        )
        return max(0, most - running)

    def _vacancies(self) -> int:
        """How many processes may be started now."""
        return min(self._wanted(), self._fleet.free())

    def _most_to_come(self) -> int:
        later = self._wanted() if self._fleet.grows else self._vacancies()
        return len(self._newcomers()) + later

    def _give_up_silent(self, living: list[_Process], now: float) -> None:
        """Kills those that the others have lost although they still run.

        Not on hosts that are cut off: that would be done only when they are back, and
        another launcher may go on with them by then.
        """
        lost = {number for number, _, is_lost in self.ended_ranks() if is_lost}
        for process in living:
            if process.waits or process.worker.rank not in lost:
                continue
            if not self._fleet.hears(process.worker):
                process.given_up_at = None
                continue
            if process.given_up_at is None:
                process.given_up_at = now
            elif now - process.given_up_at >= _LOST_S:
                self._kill(process, "the others have lost it")

    def _give_up_late(self, living: list[_Process], coming: int) -> Ending | None:
        late = [process for process in living if not process.waits]
        for process in late:
            self._kill(
                process,
                f"it has not joined within --elastic-timeout "
                f"{self._options.timeout_s:g} s",
            )
        if late:
            return None
        return self._end(
            f"fewer than --min-np {self._options.min_size} ranks "
            f"({len(living) + coming}) were there within --elastic-timeout "
            f"{self._options.timeout_s:g} s",
            self._cause,
        )

    def _kill_stragglers(self, now: float) -> None:
        for process in self._processes.values():
            if process.left_at is not None and now - process.left_at >= _LOST_S:
                process.worker.signal(signal.SIGKILL)

    def _kill(self, process: _Process, why: str) -> None:
        if process.killed:
            return
        process.killed = True
        self._say(f"elastic: killing {_named(process)}: {why}")
        # Not `signal`: it counts as lost, not as stopped by us.
        process.worker.deliver(signal.SIGKILL)

    def _end(self, why: str, cause: Callable[[], str] = lambda: "") -> Ending:
        self._ending = Ending(why, TOO_FEW, told=True, cause=cause)
        # One may have left, which others have noticed, and have ended, before it ends.
        self._suspects = [p for p in self._members if p.lost or not p.waits]
        for process in self._processes.values():
            if process.waits and process.worker.running:
                self._tell_end(process)
        return self._ending

    def _tell_end(self, process: _Process) -> None:
        assert process.tell is not None
        assert self._ending is not None
        process.tell({"end": f"{self._ending.message}{self._ending.cause()}"})

    def _cause(self) -> str:
        """Which process was lost first of those that have met last, if any was."""
        order = {number: i for i, (number, _, _) in enumerate(self.ended_ranks())}
        lost = [process for process in self._suspects if process.lost]
        first = min(
            lost,
            key=lambda process: (
                order.get(process.worker.rank, len(order)),
                process.worker.ended_at or 0.0,
            ),
            default=self._last_lost,
        )
        return "" if first is None else f". {_named(first)} {first.lost}"


def _named(process: _Process) -> str:
    worker = process.worker
    rank = "no rank yet" if process.rank is None else f"rank {process.rank}"
    return f"process {worker.rank} ({rank}, host {worker.host_name}, pid {worker.pid})"


def _count(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"
