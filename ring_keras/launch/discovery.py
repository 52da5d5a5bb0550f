"""Hosts that come and go: what a script of the user's says of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ring_keras.launch.guard import Ended, heard_signals
from ring_keras.launch.hosts import Host, HostsError, parse_lines
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.workers import how_ended, signal_group

__all__ = ["DiscoveryOptions", "HostScript", "first_hosts"]

# It may ask a server. One that takes longer hangs.
_TIMEOUT_S = 60.0
_PERIOD_S = 1.0
_READ_NBYTES = 1 << 16


@dataclass(frozen=True)
class DiscoveryOptions:
    """How hosts are found.

    Attributes:
        script: A program that prints them, as a hostfile has them.
        default_slots: Of a host that is printed without.
    """

    script: Path
    default_slots: int

    @property
    def command(self) -> list[str]:
        """What runs it: its interpreter where files are not to be run, as on many /tmp.

        Raises:
            OSError: If it cannot be read.
        """
        is_program = self.script.stat().st_mode & 0o111
        if is_program and not os.access(self.script, os.X_OK):
            with self.script.open("rb") as file:
                mark, _, interpreter = file.readline().partition(b"#!")
            if not mark and interpreter.strip():
                words = os.fsdecode(interpreter).split(maxsplit=1)
                return [*(word.strip() for word in words), str(self.script)]
        return [str(self.script)]

    def parse(self, text: str) -> list[Host]:
        """What it printed; nothing is no host.

        Raises:
            HostsError: If it is something else.
        """
        return parse_lines(
            text.splitlines(), str(self.script), default_slots=self.default_slots
        )


def first_hosts(
    options: DiscoveryOptions, least_slots: int, timeout_s: float
) -> list[Host]:
    """Runs the script until it names hosts with so many slots.

    Raises:
        HostsError: If it has not in time, cannot be run, or prints something else.
    """
    with _ending_in_order():
        return _first_hosts(options, least_slots, timeout_s)


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """In it the signals that end this process end first what it has started."""
    numbers = [n for n in heard_signals() if n in (signal.SIGTERM, signal.SIGHUP)]

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    earlier = {number: signal.signal(number, leave) for number in numbers}
    # Who has started it may have held them back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _first_hosts(
    options: DiscoveryOptions, least_slots: int, timeout_s: float
) -> list[Host]:
    deadline = time.monotonic() + timeout_s
    told = False
    while True:
        problem = f"it names fewer than {least_slots} slots"
        try:
            returncode, printed = _run(options)
            hosts = []
            if returncode == 0:
                hosts = options.parse(printed.decode(errors="replace"))
            else:
                problem = f"it {how_ended(returncode)}"
        except OSError as error:
            raise HostsError(f"{options.script}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            hosts, problem = [], f"it took more than {_TIMEOUT_S:g} s"
        if sum(host.slots for host in hosts) >= least_slots:
            return hosts
        if time.monotonic() >= deadline:
            raise HostsError(f"{options.script}: {problem}, for {timeout_s:g} s")
        if not told:
            say(f"waiting for hosts: {options.script}: {problem}")
            told = True
        time.sleep(_PERIOD_S)


def _run(options: DiscoveryOptions) -> tuple[int, bytes]:
    """How it ended, and what it printed."""
    # One that comes while it is being started would leave nobody who knows its pid.
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def hear() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)

    try:
        with subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=hear,  # There is no other thread yet.
        ) as process:
            try:
                hear()
                printed, _ = process.communicate(timeout=_TIMEOUT_S)
            except BaseException:
                signal_group(process.pid, signal.SIGKILL)  # With what it has started.
                raise
    finally:
        hear()
    return process.returncode, printed


class HostScript:
    """Runs the script about each second, from now on.

    Args:
        options: Which.
        loop: Calls back.
        take: Gets the hosts, each time.
        tell: Tells the user what is wrong with the script, once.
    """

    def __init__(
        self,
        options: DiscoveryOptions,
        loop: Loop,
        take: Callable[[Sequence[Host]], None],
        tell: Callable[[str], None],
    ) -> None:
        self._options = options
        self._loop = loop
        self._take = take
        self._tell = tell
        self._told = ""
        self._pid: int | None = None
        self._fd = -1
        self._printed = b""
        self._started_at = 0.0
        self._over = False
        loop.on_tick(self._tick)

    def finish(self) -> None:
        """The job is over."""
        self._over = True
        self._loop.no_tick(self._tick)
        if self._pid is not None:
            signal_group(self._pid, signal.SIGKILL)

    def _tick(self) -> None:
        now = time.monotonic()
        if self._pid is not None:
            if now - self._started_at > _TIMEOUT_S:
                signal_group(self._pid, signal.SIGKILL)
            return
        self._started_at = now
        try:
            command = self._options.command
            self._fd, write_fd = os.pipe()
        except OSError as error:
            self._complain(str(error.strerror))
            return
        os.set_blocking(self._fd, False)
        try:
            self._pid = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write_fd, 1),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            )
        except OSError as error:
            os.close(self._fd)
            self._complain(str(error.strerror))
            return
        finally:
            os.close(write_fd)
        self._loop.on_readable(self._fd, self._read)
        self._loop.on_child_end(self._pid, self._note_end)

    def _note_end(self, ended: Ended) -> None:
        self._read()
        self._loop.forget(self._fd)
        os.close(self._fd)
        self._pid = None
        printed, self._printed = self._printed, b""
        if ended.returncode != 0:
            self._complain(f"it {how_ended(ended.returncode)}")
            return
        try:
            hosts = self._options.parse(printed.decode(errors="replace"))
        except HostsError as error:
            self._complain(str(error))
            return
        self._told = ""
        if not self._over:
            self._take(hosts)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, _READ_NBYTES):
                self._printed += data
            self._loop.forget(self._fd)

    def _complain(self, problem: str) -> None:
        """The hosts stay what they are."""
        if problem != self._told:
            self._told = problem
            self._tell(f"elastic: {self._options.script}: {problem}")
