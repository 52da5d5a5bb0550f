"""The processes of one job: started, given work, watched, ended."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.fork_server import ForkedProcess, ForkServer
from support.job import Environment, Job, light_environment
from support.mpi import mpi_of
from support.mpi_ranks import MpiRanks
from support.outcome import RankOutcome

Process = subprocess.Popen[bytes] | ForkedProcess

_FORK_SERVER = ForkServer(light_environment)
atexit.register(_FORK_SERVER.close)


def start_fork_server() -> None:
    """Starts it, in the namespaces of the calling thread; later it stays there."""
    _FORK_SERVER.launch()


# How long ranks that still work may go on after another one failed: enough to
# notice it by themselves and say so.
AFTER_FAILURE_S = 10.0
# How long a rank told to abort may take to print its stacks.
ABORT_S = 3.0


@dataclass
class _Rank:
    rank: int
    process: Process
    stdout: Path
    stderr: Path
    exited_at: float | None = None
    timed_out: bool = False
    # Where the output of the run in progress begins.
    offsets: dict[Path, int] = field(default_factory=dict)


class RankProcesses:
    """`size` Python processes with the environment of one job.

    Args:
        size: Number of ranks.
        env: See `Job`.
        bind_address: See `Job`.
        command_prefix: Per rank, words put before the Python command, for
            instance `["ip", "netns", "exec", "left"]`. They must exec it.
        warm: Whether each process imports TensorFlow and calls `init()` before
            its first worker.
    """

    def __init__(
        self,
        size: int,
        *,
        env: Environment | None = None,
        bind_address: str = "127.0.0.1",
        command_prefix: Sequence[Sequence[str]] | None = None,
        warm: bool = False,
    ) -> None:
        self.size = size
        self._events: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ready: list[bool] = [not warm] * size
        self._ranks: list[_Rank] = []
        self._run_count = 0
        self._job = Job(size, env=env, bind_address=bind_address)
        self._mpi: MpiRanks | None = None
        try:
            own = self._job.environment(0)
            if mpi := own.get("TESTS_MPI"):
                directory = self._job.directory
                self._mpi = MpiRanks(mpi_of(mpi), size, directory, own)
            for rank in range(size):
                prefix = command_prefix[rank] if command_prefix else ()
                self._ranks.append(self._start(rank, prefix, warm))
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self, timeout_s: float) -> None:
        """Waits until every process is warm."""
        start = time.monotonic()
        self._wait(
            start + timeout_s,
            lambda: all(self._ready) or any(rank.exited_at for rank in self._ranks),
        )
        if not all(self._ready):
            self._stop_late(self._ranks)
            outcomes = [self._outcome(rank, start, None) for rank in self._ranks]
            raise AssertionError(
                report(outcomes, f"{self.size} ranks did not get ready")
            )

    def run(
        self,
        worker: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        last: bool,
        hurry_after_failure: bool,
    ) -> list[RankOutcome]:
        """Runs `worker` on every rank, and waits for all of them.

        Args:
            worker: Module-level function, or a `functools.partial` of one.
            args: Its positional arguments, the same for every rank.
            kwargs: Its keyword arguments.
            timeout_s: Time for all of it; who is late is killed.
            last: Whether the processes are to exit afterwards.
            hurry_after_failure: Whether one failure leaves the others only a
                short time.
        """
        start = time.monotonic()
        deadline = start + timeout_s
        tasks = self._send(worker, args, dict(kwargs or {}), last)

        def over(rank: _Rank) -> bool:
            if last or rank.exited_at is not None:
                return rank.exited_at is not None
            return tasks[rank.rank].with_suffix(".outcome").exists()

        def failed(rank: _Rank) -> bool:
            outcome = self._outcome(rank, start, tasks)
            raised = outcome.exception_type is not None
            return raised or (over(rank) and not outcome.ok)

        if hurry_after_failure:
            self._wait(
                deadline,
                lambda: all(map(over, self._ranks)) or any(map(failed, self._ranks)),
            )
            if any(map(failed, self._ranks)):
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE_S)
        self._wait(deadline, lambda: all(map(over, self._ranks)))
        self._stop_late([rank for rank in self._ranks if not over(rank)])
        return [self._outcome(rank, start, tasks) for rank in self._ranks]

    def close(self) -> None:
        """Kills whoever is left, and everything they started."""
        for rank in self._ranks:
            self._kill_group(rank, signal.SIGKILL)
        if self._mpi is not None:
            self._mpi.close()
        for thread in self._threads:
            # What left the rank's session may still hold its descriptors.
            thread.join(ABORT_S)
        for rank in self._ranks:
            _close_stdin(rank.process)
        self._job.close()

    def end(self, timeout_s: float) -> list[RankOutcome]:
        """Lets idle processes exit by themselves. Call `close` afterwards."""
        start = time.monotonic()
        for rank in self._ranks:
            _close_stdin(rank.process)
        self._wait(
            start + timeout_s, lambda: all(rank.exited_at for rank in self._ranks)
        )
        self._stop_late([rank for rank in self._ranks if not rank.exited_at])
        return [self._outcome(rank, start, None) for rank in self._ranks]

    def _start(self, rank: int, prefix: Sequence[str], warm: bool) -> _Rank:
        stdout = self._job.directory / f"stdout.{rank}"
        stderr = self._job.directory / f"stderr.{rank}"
        done_read, done_write = os.pipe()
        environment = self._job.environment(rank)
        try:
            with stdout.open("wb") as out, stderr.open("wb") as err:
                files = (out.fileno(), err.fileno(), done_write)
                process: Process
                if self._mpi is not None:
                    warm_word = str(int(warm))
                    process = self._mpi.start(rank, [warm_word], environment, files)
                elif prefix or not _FORK_SERVER.can_start(environment):
                    process = _spawn(prefix, files, environment, warm)
                else:
                    process = _FORK_SERVER.start([str(int(warm))], environment, files)
        finally:
            os.close(done_write)
        started = _Rank(rank, process, stdout, stderr)
        for target in (
            functools.partial(self._watch_done, started, done_read),
            functools.partial(self._watch_exit, started),
        ):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)
        return started

    def _watch_done(self, rank: _Rank, done_fd: int) -> None:
        with os.fdopen(done_fd, "rb", buffering=0) as done:
            while done.read(1):
                self._ready[rank.rank] = True
                self._events.put(None)

    def _watch_exit(self, rank: _Rank) -> None:
        code = rank.process.wait()
        exited_at = time.monotonic()
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )
        self._job.store.report_exit(rank.rank, how)
        rank.exited_at = exited_at
        self._events.put(None)

    def _wait(self, deadline: float, done: Callable[[], bool]) -> None:
        """Sleeps until `done` or the deadline; every change is an event."""
        while not done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            try:
                self._events.get(timeout=left_s)
            except queue.Empty:
                return

    def _send(
        self,
        worker: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        last: bool,
    ) -> list[Path]:
        function = worker
        while isinstance(function, functools.partial):
            function = function.func
        module_file = inspect.getsourcefile(function)
        content = pickle.dumps((function.__module__, module_file))
        content += pickle.dumps((worker, tuple(args), kwargs))
        self._run_count += 1
        tasks = []
        for rank in self._ranks:
            rank.offsets = {
                path: path.stat().st_size for path in (rank.stdout, rank.stderr)
            }
            if self._run_count == 1:  # What its start printed belongs to it.
                rank.offsets = {}
            task = self._job.directory / f"run{self._run_count}-rank{rank.rank}"
            task.write_bytes(content)
            tasks.append(task)
            _write_line(rank.process, str(task))
            if last:
                _close_stdin(rank.process)
        return tasks

    def _outcome(
        self, rank: _Rank, start: float, tasks: list[Path] | None
    ) -> RankOutcome:
        said: dict[str, Any] = {}
        if tasks is not None:
            path = tasks[rank.rank].with_suffix(".outcome")
            if path.exists():
                said = pickle.loads(path.read_bytes())
        ended_at = said.get("ended_at", rank.exited_at or time.monotonic())
        result = said.get("result")
        return RankOutcome(
            rank=rank.rank,
            pid=rank.process.pid,
            result=None if result is None else pickle.loads(result),
            returned=said.get("returned", False),
            exception_type=said.get("exception_type"),
            exception_bases=said.get("exception_bases", ()),
            message=said.get("message", ""),
            traceback=said.get("traceback", ""),
            returncode=None if rank.exited_at is None else rank.process.returncode,
            timed_out=rank.timed_out,
            stdout=_read(rank.stdout, rank.offsets),
            stderr=_read(rank.stderr, rank.offsets),
            seconds=ended_at - start,
            ended_at=ended_at,
        )

    def _stop_late(self, late: list[_Rank]) -> None:
        """Ends ranks that ran past the deadline; their stacks go to stderr."""
        for rank in late:
            if rank.exited_at is None:
                rank.timed_out = True
                self._kill_group(rank, signal.SIGABRT)
        gone = time.monotonic() + ABORT_S
        self._wait(gone, lambda: all(rank.exited_at for rank in late))
        for rank in late:
            self._kill_group(rank, signal.SIGKILL)
        self._wait(gone + ABORT_S, lambda: all(rank.exited_at for rank in late))

    @staticmethod
    def _kill_group(rank: _Rank, signal_number: int) -> None:
        # The group outlives its leader while the rank's own children live.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.process.pid, signal_number)


def _spawn(
    prefix: Sequence[str], files: Sequence[int], env: Mapping[str, str], warm: bool
) -> subprocess.Popen[bytes]:
    out, err, done = files
    command = [*prefix, sys.executable, "-m", "support.child"]
    return subprocess.Popen(
        [*command, str(os.getpid()), str(done), str(int(warm))],
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=err,
        env=env,
        pass_fds=(done,),
        start_new_session=True,
    )


def report(outcomes: list[RankOutcome], title: str) -> str:
    """Every rank that failed; those that only reacted come after the others."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    failed.sort(key=lambda outcome: (outcome.timed_out, outcome.ended_at))
    return "\n".join([title, *(outcome.describe() for outcome in failed)])


def _write_line(process: Process, line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # It died; its exit says how.
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()


def _close_stdin(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _read(path: Path, offsets: dict[Path, int]) -> str:
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        return file.read().decode(errors="replace")
