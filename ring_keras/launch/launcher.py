"""One job from its first process to its last."""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from ring_keras._libraries import rebuild_command
from ring_keras.launch.binding import allowed_processors, share_out
from ring_keras.launch.environment import job_variables
from ring_keras.launch.guard import FORWARDED_SIGNALS, kill_descendants, reap
from ring_keras.launch.output import OutputPump, say
from ring_keras.launch.verdict import judge
from ring_keras.launch.workers import (
    Worker,
    how_ended,
    signal_name,
    start_worker,
)

# How long ranks have to notice by themselves that another one failed. The store
# tells them in much less; the rest is for printing why, and for saving.
NOTICE_S = 5.0
GENERATION = 0
_STORE_HOST = "127.0.0.1"
_TOKEN_NBYTES = 32


@dataclass(frozen=True)
class JobOptions:
    """What to run.

    Attributes:
        size: Number of ranks.
        command: The command of each.
        environment: Of each, without what makes it one rank of the job.
        grace_period_s: From asking ranks to end until killing them.
        output_directory: Gets each rank's output in files, if not None.
        colour: Whether to colour prefixes on a terminal.
        verbose: Whether to tell of each start and end.
        bind_to_cores: Whether each rank keeps to cores of its own.
        timestamps: Whether each line begins with the time.
    """

    size: int
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_period_s: float
    output_directory: Path | None
    colour: bool
    verbose: bool
    bind_to_cores: bool
    timestamps: bool


class _State(Enum):
    RUNNING = auto()
    FAILED = auto()  # A rank failed; the others may notice by themselves.
    STOPPING = auto()  # All were told to end.
    KILLING = auto()
    ENDED = auto()  # All that is left to do is to write their output.


class Launcher:
    """Starts the ranks, watches them, and ends them all when one fails."""

    def __init__(self, options: JobOptions, front_fd: int, directory: Path) -> None:
        self._options = options
        self._front_fd = front_fd
        self._directory = directory
        self._workers: list[Worker] = []
        self._state = _State.RUNNING
        self._state_ends_at: float | None = None
        self._interrupt: int | None = None
        self._output_broken = False
        self._hung: set[int] = set()

    def run(self) -> int:
        """Runs the job; returns ringrun's exit code."""
        try:
            from ring_keras import _native
        except ImportError as error:
            say(f"ring_keras is not built ({error}); build it: {rebuild_command()}")
            return 1
        token = secrets.token_bytes(_TOKEN_NBYTES)
        token_file = self._directory / "token"
        _write_private(token_file, token.hex())
        size = self._options.size
        self._store = _native.StoreServer(_STORE_HOST, 0, size, GENERATION, token)
        self._wake_fd = _wake_on_signals()
        self._pump = OutputPump(
            self._options.output_directory,
            colour=self._options.colour,
            timestamps=self._options.timestamps,
            on_broken=self._note_broken_output,
        )
        try:
            try:
                self._start_workers(token_file)
            except OSError as error:
                say(f"cannot start the ranks: {error}")
                return 1
            self._pump.start()
            self._watch()
        finally:
            kill_descendants()
            self._store.close()
        return self._conclude()

    def _start_workers(self, token_file: Path) -> None:
        size = self._options.size
        cpus: list[tuple[int, ...]] = [()] * size
        if self._options.bind_to_cores:
            cpus = share_out(allowed_processors(), size)
        for rank in range(size):
            job = job_variables(
                rank,
                self._options.size,
                store_address=f"{_STORE_HOST}:{self._store.port}",
                token_file=token_file,
                generation=GENERATION,
            )
            worker = start_worker(
                rank,
                self._options.command,
                {**self._options.environment, **job},
                cpus[rank],
            )
            self._workers.append(worker)
            self._pump.add_rank(rank, worker.stdout_fd, worker.stderr_fd)
            if self._options.verbose:
                where = f", on CPUs {list(cpus[rank])}" if cpus[rank] else ""
                say(f"rank {rank} is pid {worker.pid}{where}")

    def _watch(self) -> None:
        """Until every rank has ended and all they printed has been written."""
        with selectors.DefaultSelector() as selector:
            for fd in (self._front_fd, self._wake_fd, self._pump.done_fd):
                selector.register(fd, selectors.EVENT_READ)
            output_done = False
            while not output_done or any(worker.running for worker in self._workers):
                ready = {key.fd for key, _ in selector.select(self._time_left())}
                if self._front_fd in ready:
                    os._exit(_killed_with_front())
                if self._pump.done_fd in ready:
                    output_done = True
                    selector.unregister(self._pump.done_fd)
                if self._wake_fd in ready:
                    for number in os.read(self._wake_fd, 4096):
                        self._take_signal(number)
                if self._output_broken and self._interrupt is None:
                    self._take_signal(signal.SIGPIPE)
                self._reap()
                self._advance()

    def _time_left(self) -> float | None:
        if self._state_ends_at is None:
            return None
        return max(0.0, self._state_ends_at - time.monotonic())

    def _reap(self) -> None:
        while (ended := reap()) is not None:
            pid, returncode = ended
            for worker in self._workers:
                if worker.pid == pid:
                    worker.end(returncode)
                    self._store.report_exit(worker.rank, how_ended(returncode))
                    self._tell_end(worker)

    def _tell_end(self, worker: Worker) -> None:
        assert worker.returncode is not None
        if self._options.verbose:
            say(
                f"rank {worker.rank} (pid {worker.pid}) "
                f"{how_ended(worker.returncode)} after {worker.seconds:.1f} s"
            )

    def _advance(self) -> None:
        """Moves on where a rank failed, a time is over, or all have ended."""
        now = time.monotonic()
        if self._state is _State.RUNNING and any(w.failed for w in self._workers):
            self._enter(_State.FAILED, NOTICE_S)
        if not any(worker.running for worker in self._workers):
            if self._state is not _State.ENDED:
                self._enter(_State.ENDED, None)
                # They may have left processes that hold the output open.
                kill_descendants()
        elif self._state_ends_at is not None and self._state_ends_at <= now:
            if self._state is _State.FAILED:
                self._stop(signal.SIGTERM)
            else:
                self._kill()

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if self._state is _State.ENDED and number != signal.SIGPIPE:
            os._exit(128 + number)  # Whoever reads our output does not.
        if self._interrupt is not None:
            self._kill()
            return
        self._interrupt = number
        if number == signal.SIGINT:
            say(
                f"waiting up to {self._options.grace_period_s:g} s for the ranks to "
                "end; Ctrl-C again kills them at once"
            )
        # Python takes SIGINT as KeyboardInterrupt, so scripts can clean up.
        self._stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _stop(self, number: int) -> None:
        lost = {rank for rank, _, is_lost in self._store.ended_ranks() if is_lost}
        for worker in self._workers:
            if worker.running and worker.rank in lost:
                self._hung.add(worker.rank)
            worker.signal(number)
        self._enter(_State.STOPPING, self._options.grace_period_s)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGKILL)
        self._enter(_State.KILLING, None)

    def _enter(self, state: _State, seconds: float | None) -> None:
        self._state = state
        self._state_ends_at = None if seconds is None else time.monotonic() + seconds

    def _note_broken_output(self) -> None:
        self._output_broken = True
        os.kill(os.getpid(), signal.SIGCHLD)  # Wakes _watch().

    def _conclude(self) -> int:
        failed = any(worker.failed for worker in self._workers)
        if self._interrupt is not None and not failed:
            late = [w.rank for w in self._workers if w.returncode == -signal.SIGKILL]
            text = f"stopped by {signal_name(self._interrupt)}"
            if self._interrupt == signal.SIGPIPE:
                text = "stopped, as nobody reads its output any more"
            if late:
                text += f"; killed the ranks that did not end: {late}"
            say(text)
            return 128 + self._interrupt
        verdict = judge(
            self._workers,
            self._store.ended_ranks(),
            self._hung,
            socket.gethostname(),
        )
        if verdict.message is not None:
            say(verdict.message)
        return verdict.exit_code


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)


def _wake_on_signals() -> int:
    """Makes signals readable as bytes of a descriptor, instead of acting."""
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (*FORWARDED_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    return wake_read


def _killed_with_front() -> int:
    """The front was killed, so the ranks are."""
    kill_descendants()
    return 128 + signal.SIGKILL
