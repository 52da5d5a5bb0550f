"""One job from its first process to its last."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path

from ring_keras._codes import codes_in
from ring_keras._libraries import build_problem
from ring_keras.launch.card import Card
from ring_keras.launch.crew import Crew
from ring_keras.launch.desk import CannotStartError, Desk, LaunchOptions
from ring_keras.launch.elastic_members import ElasticMembers
from ring_keras.launch.environment import write_private
from ring_keras.launch.fleet import Fleet
from ring_keras.launch.guard import (
    KILL_TIMEOUT_S,
    RANKS_SIGNALS,
    kill_descendants,
)
from ring_keras.launch.job_watch import JobWatch
from ring_keras.launch.loop import TICK_S, Loop
from ring_keras.launch.members import Ending, FixedMembers, Members
from ring_keras.launch.output import OutputPump, say
from ring_keras.launch.source import Source
from ring_keras.launch.verdict import RANK_FAILED, judge
from ring_keras.launch.workers import Worker, how_ended, signal_name

__all__ = ["Launcher"]

# How long ranks have to notice by themselves that another one failed. The store
# tells them in much less; the rest is for printing why, and for saving.
NOTICE_S = 5.0
# How long hosts have to say that ranks have ended that were killed.
_WORD_S = KILL_TIMEOUT_S + 2.0
# Who is there says so each second.
_SILENT_S = 3.0
# How long other nodes have to hear how the job ended.
PART_S = 2.0
_TOKEN_NBYTES = 32
_MOST_CODES = 4


class _State(Enum):
    RUNNING = auto()
    FAILED = auto()  # A rank failed; the others may notice by themselves.
    STOPPING = auto()  # All were told to end.
    KILLING = auto()
    ENDED = auto()  # All that is left to do is to write their output.


class Launcher:
    """Starts the ranks, watches them, and ends them all when one fails.

    Args:
        options: How.
        source: Makes the hosts ready.
        front_fd: Reads end of file once the front has died.
        directory: For files of the job.
        token: The job's secret; by default a new one.
    """

    def __init__(
        self,
        options: LaunchOptions,
        source: Source,
        front_fd: int,
        directory: Path,
        token: bytes | None = None,
    ) -> None:
        self._options = options
        self._source = source
        self._front_fd = front_fd
        self._directory = directory
        self._token = token or secrets.token_bytes(_TOKEN_NBYTES)
        self._crews: list[Crew] = []
        self._members: Members | None = None
        self._ending: Ending | None = None
        self._state = _State.RUNNING
        self._state_ends_at: float | None = None
        self._interrupt: int | None = None
        self._hung: set[int] = set()
        # Whether output may never end.
        self._waits_no_more = False
        # Whether the ranks are, or will be, another launcher's.
        self._leaves_ranks = False
        self._superseded: str | None = None

    def run(self) -> int:
        """Runs the job; returns ringrun's exit code."""
        missing = build_problem()
        if missing is not None:
            say(f"[RK701] {missing}")
            return 1
        token_file = self._directory / "token"
        write_private(token_file, self._token.hex())
        self._loop = Loop(self._front_fd, self._directory, self._take_signal)
        self._pump = OutputPump(
            self._options.output_directory,
            colour=self._options.colour,
            timestamps=self._options.timestamps,
            raw=self._options.raw,
            on_broken=self._note_broken_output,
            appends=self._takes_over,
        )
        if self._options.tenure is not None:
            self._options.tenure.begin(self._token, self._pump.say, self._tell_agents)
        try:
            self._job_watch = JobWatch(
                self._options.watch,
                self._loop,
                self._directory,
                self._pump,
                self._arrivals,
                needs_all=not self._takes_over,  # It may be another host.
            )
        except OSError as error:
            say(f"[RK816] cannot watch the job: {error}")
            return 1
        problem = None
        try:
            self._start(token_file)
            if self._interrupt is None:
                self._pump.start()
                if self._ends_job:
                    self._take_signal(signal.SIGTERM)
                self._watch()
        except (OSError, CannotStartError) as error:
            problem = f"[RK810] cannot start the ranks: {error}"
            if self._takes_over:
                problem = f"[RK822] cannot take the job over: {error}"
                self._leaves_ranks = True
        finally:
            kill_descendants()
            if self._members is not None:
                self._members.close()
        exit_code, message = self._conclude()
        if self._unheard:
            if message is not None:
                say(message)
            exit_code, message = exit_code or 1, self._how_to_end_unheard()
        if self._superseded is not None:
            problem = self._superseded
        if problem is not None and (self._interrupt is None or self._leaves_ranks):
            exit_code = 1 if self._interrupt is None else 128 + self._interrupt
            message = problem
        if message is not None:
            for hint in self._pump.hints:
                say(hint)
            if self._interrupt is None:
                self._say_where_explained(message)
            say(message)
        elif exit_code == 0 and self._options.expects_join:
            self._say_if_none_joined()
        self._job_watch.conclude(message)
        self._part(exit_code, message)
        return exit_code

    def _say_where_explained(self, verdict: str) -> None:
        codes = [code.decode() for code in self._pump.codes]
        codes += [code for code in codes_in(verdict) if code != RANK_FAILED]
        if codes:
            named = ",".join(dict.fromkeys(codes[:_MOST_CODES]))
            say(f"`ringrun --explain {named}` says what that means, and what to do")

    @property
    def _takes_over(self) -> bool:
        tenure = self._options.tenure
        return tenure is not None and tenure.taken_over

    @property
    def _ends_job(self) -> bool:
        tenure = self._options.tenure
        return tenure is not None and tenure.ends_job

    @property
    def _unheard(self) -> str:
        """Hosts whose ranks shall end, and that were not there to hear of it."""
        tenure = self._options.tenure
        if tenure is None or not tenure.ends_job:
            return ""
        return ", ".join(tenure.unheard)

    def _part(self, exit_code: int, message: str | None) -> None:
        if self._leaves_ranks:
            return
        tenure, members = self._options.tenure, self._members
        leaves_some = members is not None and members.leaves_ranks
        if tenure is not None and not (leaves_some or self._unheard):
            tenure.end()
        for crew in self._crews:
            crew.dismiss(exit_code, message)
        deadline = time.monotonic() + PART_S
        while not all(crew.parted for crew in self._crews):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._loop.turn(left)

    def _start(self, token_file: Path) -> None:
        desk = Desk(
            options=self._options,
            loop=self._loop,
            token=self._token,
            token_file=token_file,
            output=self._pump,
            watch=self._job_watch,
            crews=self._crews,
            on_end=self._note_end,
            interrupt=self._take_others_signal,
            on_superseded=self._note_superseded,
            run_until=self._run_until,
        )
        hosts, elastic = self._source(desk), self._options.elastic
        self._require_time()
        if elastic is None:
            self._members = FixedMembers(desk, hosts.store_host)
        else:
            fleet = Fleet(
                hosts.crews,
                elastic,
                self._pump.say,
                hosts.growth,
                self._options.heartbeat_s,
                self._options.kept_s,
                hosts.cut_off,
            )
            self._members = ElasticMembers(elastic, desk, hosts.store_host, fleet)
        self._members.begin()

    def _watch(self) -> None:
        """Until every rank has ended and all they printed has been written."""
        output_done = False

        def note_output_done() -> None:
            nonlocal output_done
            output_done = True
            self._loop.forget(self._pump.done_fd)

        self._loop.on_readable(self._pump.done_fd, note_output_done)
        while not (output_done and all(crew.done for crew in self._crews)):
            self._loop.turn(self._time_left())
            if self._superseded is not None:
                return
            self._advance()
            if self._waits_no_more:
                return

    def _run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        self._loop.run_until(
            lambda: (
                self._interrupt is not None
                or self._superseded is not None
                or condition()
            ),
            timeout_s,
        )
        self._require_time()
        return condition()

    def _require_time(self) -> None:
        """Raises CannotStartError if there is no use in going on."""
        if self._superseded is not None:
            raise CannotStartError(self._superseded)
        if self._takes_over and self._interrupt is not None:
            assert self._options.tenure is not None
            raise CannotStartError(
                f"it was stopped by {signal_name(self._interrupt)} before it had the "
                "job, whose ranks go on, or wait for another launcher. `ringrun "
                f"--take-over {self._options.tenure.path} --end` ends them"
            )

    def _time_left(self) -> float | None:
        if self._state_ends_at is None:
            return None
        return max(0.0, self._state_ends_at - time.monotonic())

    def _workers(self) -> Iterator[Worker]:
        for crew in self._crews:
            yield from crew.workers

    def _note_end(self, worker: Worker) -> None:
        assert worker.returncode is not None
        how = how_ended(worker.returncode) + worker.remark
        if worker.lost_with is not None:
            how = f"was lost with its host: {worker.lost_with}"
        if self._members is not None:
            self._members.report_exit(worker.rank, how)
        self._job_watch.note_end(worker, how)
        if self._options.verbose:
            self._pump.say(
                f"rank {worker.rank} (pid {worker.pid}) {how} after "
                f"{worker.seconds:.1f} s"
            )

    def _advance(self) -> None:
        """Moves on where a rank failed, a time is over, or all have ended."""
        now = time.monotonic()
        if self._state is _State.RUNNING:
            self._judge_running(now)
        running = any(worker.running for worker in self._workers())
        if not running and self._state is not _State.ENDED:
            self._enter(_State.ENDED, None if self._interrupt is None else _WORD_S)
            assert self._members is not None
            self._members.finish()
        elif self._state_ends_at is not None and self._state_ends_at <= now:
            if self._state is _State.FAILED:
                self._stop(signal.SIGTERM)
            elif self._state is _State.STOPPING:
                self._kill()
            elif self._state is _State.KILLING:
                self._give_up_killed()
            else:
                # Of those that are heard, output is waited for.
                self._give_up_silent()
                self._state_ends_at = now + TICK_S

    def _judge_running(self, now: float) -> None:
        assert self._members is not None
        self._ending = self._members.advance(now)
        if self._ending is None:
            return
        if self._ending.told:
            self._enter(_State.FAILED, NOTICE_S)
        else:
            self._stop(signal.SIGTERM)

    def _take_others_signal(self, number: int) -> None:
        """Another node was interrupted; once all has ended, that is its own affair."""
        if self._state is not _State.ENDED:
            self._take_signal(number)

    def _take_signal(self, number: int) -> None:
        if number in RANKS_SIGNALS:
            for worker in self._workers():
                worker.pass_on(number)
            return
        if self._takes_over and self._members is None:
            self._interrupt = number  # The ranks are not this launcher's, yet.
            return
        if self._state is _State.ENDED and number != signal.SIGPIPE:
            os._exit(128 + number)  # Whoever reads our output does not.
        if self._interrupt is not None:
            self._kill()
            return
        self._interrupt = number
        self._pump.note_interrupt()
        if number == signal.SIGINT and any(w.running for w in self._workers()):
            self._pump.say(
                f"waiting up to {self._options.grace_period_s:g} s for the ranks to "
                "end; Ctrl-C again kills them at once"
            )
        if self._state not in (_State.KILLING, _State.ENDED):
            # Python takes SIGINT as KeyboardInterrupt, so scripts can clean up.
            self._stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _stop(self, number: int) -> None:
        for crew in self._crews:
            crew.note_ending(self._options.grace_period_s)
        lost = {rank for rank, _, is_lost in self._ended_ranks() if is_lost}
        for worker in self._workers():
            if worker.running and worker.rank in lost:
                self._hung.add(worker.rank)
            worker.signal(number)
        self._enter(_State.STOPPING, self._options.grace_period_s)

    def _kill(self) -> None:
        for worker in self._workers():
            worker.signal(signal.SIGKILL)
        if self._state is not _State.KILLING:
            self._enter(_State.KILLING, _WORD_S)

    def _give_up_killed(self) -> None:
        unheard = [worker for worker in self._workers() if worker.running]
        ranks = [worker.rank for worker in unheard]
        hosts = ", ".join(dict.fromkeys(worker.host_name for worker in unheard))
        self._pump.say(
            f"[RK821] ranks {ranks} were killed, and there is no word that they "
            f"have ended: host {hosts}. What cannot be reached ends its ranks by "
            "itself once it has not heard this host for a while; look there for "
            "processes that are left"
        )
        self._give_up_silent()
        for worker in self._workers():
            if worker.running:  # It hangs in its kernel, and holds its output open.
                worker.end(-signal.SIGKILL)
                self._waits_no_more = True

    def _give_up_silent(self) -> None:
        for crew in self._crews:
            if not crew.done and crew.silent_s > _SILENT_S:
                crew.give_up(f"there was no word from it for {crew.silent_s:.0f} s")

    def _enter(self, state: _State, seconds: float | None) -> None:
        self._state = state
        self._state_ends_at = None if seconds is None else time.monotonic() + seconds

    def _note_superseded(self, term: int) -> None:
        self._leaves_ranks = True
        self._superseded = (
            f"[RK824] another launcher, of term {term}, has taken the job over: this "
            "one ends, and its ranks go on"
        )

    def _tell_agents(self, card: Card) -> None:
        for crew in self._crews:
            crew.take_card(card)

    def _how_to_end_unheard(self) -> str:
        tenure = self._options.tenure
        assert tenure is not None
        return (
            f"[RK827] the ranks of the agents that are there have ended. There was no "
            f"word from host {self._unheard}, which may have others: they end by "
            f"themselves within {self._options.kept_s:g} s of when they were cut off, "
            f"if no launcher comes. To end them sooner, `ringrun --take-over "
            f"{tenure.path} --end` once it is reached; the card is still there"
        )

    def _note_broken_output(self) -> None:
        """From the output's thread."""
        self._loop.call_soon(self._end_for_broken_output)

    def _end_for_broken_output(self) -> None:
        if self._interrupt is None:
            self._take_signal(signal.SIGPIPE)

    def _ended_ranks(self) -> list[tuple[int, str, bool]]:
        return [] if self._members is None else self._members.ended_ranks()

    def _arrivals(self) -> tuple[int, int] | None:
        """How many of how many ranks have joined; None if there is no such question."""
        running = any(worker.running for worker in self._workers())
        if self._members is None or self._state is not _State.RUNNING or not running:
            return None
        return self._members.arrivals

    def _say_if_none_joined(self) -> None:
        size = sum(1 for _ in self._workers())
        if size > 1 and self._members is not None and not self._members.joined:
            say(
                f"[RK817] none of the {size} ranks has joined the job: each has run "
                "the script by itself, as if it were alone. A script joins by "
                "ring_keras.init()"
            )

    def _conclude(self) -> tuple[int, str | None]:
        """The exit code, and why, if it is bad."""
        workers = [worker for worker in self._workers() if not worker.outlived]
        failed = any(worker.failed for worker in workers)
        if self._interrupt is not None and not failed:
            late = [w.rank for w in workers if w.returncode == -signal.SIGKILL]
            text = f"stopped by {signal_name(self._interrupt)}"
            if self._interrupt == signal.SIGPIPE:
                text = "stopped, as nobody reads its output any more"
            if late:
                text += f"; killed the ranks that did not end: {late}"
            return 0 if self._ends_job else 128 + self._interrupt, text
        ending = self._ending
        if ending is not None and ending.message is not None:
            return ending.exit_code, f"[RK806] {ending.message}{ending.cause()}"
        verdict = judge(workers, self._ended_ranks(), self._hung)
        return verdict.exit_code, verdict.message
