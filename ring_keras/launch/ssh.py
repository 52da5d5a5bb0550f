"""Agents that the user's ssh starts, that wait, or that are children on this host."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ring_keras._version import __version__
from ring_keras.config import HEARTBEAT_S, inherited_environment
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.call import DOOR, LINE_LOST
from ring_keras.launch.connection import BEYOND_HEARTBEAT_S, CLOSED, Connection
from ring_keras.launch.guard import Ended
from ring_keras.launch.lines import LineBuffer
from ring_keras.launch.loop import Loop
from ring_keras.launch.workers import signal_name

__all__ = ["SshLine", "SshOptions", "agent_command"]

# ssh's own patience is minutes. What comes first counts: the user's come before.
_SSH_OPTIONS = (
    "BatchMode=yes",  # Nobody could answer.
    "ConnectTimeout=10",
    "ServerAliveCountMax=2",
    # One that others share is used; what ringrun starts ends with the job, which a
    # new one that others begin to share must not.
    "ControlMaster=no",
)
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_REAPED = -1

# From the end of what the agent says until ssh says how it ended.
_PATIENCE_TICKS = 3
_TOLD_LINES = 3


@dataclass(frozen=True)
class SshOptions:
    """How the agents of other hosts are started.

    Attributes:
        arguments: For ssh, before its own.
        port: Where sshd listens; None: as ssh is configured.
        identity_file: The user's key; None: as ssh is configured.
        python: The interpreter on the other hosts.
        instead: The words that a command to run on a host follows, with the host
            before it, where not ssh but a scheduler, or a program of the user's,
            starts it; empty: ssh.
        waiting_port: Where agents wait on the other hosts, which none has to start;
            None: they do not.
        at_door: Whether that is the door of one that keeps its ranks.
        secret_file: With the secret that those hold too.
        silence_s: How long the line may be silent; ssh is no more impatient.
        kept: Whether the agent on this host outlives its launcher, as those on others
            do.
    """

    arguments: Sequence[str] = ()
    port: int | None = None
    identity_file: str | None = None
    python: str = sys.executable
    instead: Sequence[str] = ()
    waiting_port: int | None = None
    at_door: bool = False
    secret_file: str = ""
    silence_s: float = HEARTBEAT_S
    kept: bool = False

    @property
    def by_ssh(self) -> bool:
        """Whether it is ssh that starts them."""
        return not self.instead and self.waiting_port is None


def agent_command(host: str | None, options: SshOptions) -> list[str]:
    """The command that starts an agent; on this host, if `host` is None."""
    if host is None:
        kept = ["--kept"] if options.kept else []
        return [sys.executable, "-m", "ring_keras.launch.agent", *kept]
    if options.waiting_port is not None:
        address = f"[{host}]" if ":" in host else host
        place = f"{address}:{options.waiting_port}"
        command = [sys.executable, "-m", "ring_keras.launch.call"]
        door = [DOOR] if options.at_door else []
        return [*command, place, options.secret_file, *door]
    words = [options.python, "-m", "ring_keras.launch.agent"]
    if options.instead:
        return [*options.instead, host, *words]
    command = ["ssh", "-T", *options.arguments]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity_file is not None:
        command += ["-i", options.identity_file]
    alive_s = math.ceil((options.silence_s + BEYOND_HEARTBEAT_S) / 2)
    for option in (*_SSH_OPTIONS, f"ServerAliveInterval={alive_s}"):
        command += ["-o", option]
    return [*command, "--", host, shlex.join(words)]


class SshLine(AgentLine):
    """The line to an agent that is at the other end of a child's pipes.

    Args:
        host: As ssh takes it; None: this host.
        name: How messages call it.
        options: For ssh.
        loop: Calls back.
        say: Shows what ssh and the agent say besides.

    Raises:
        OSError: If the child cannot be started.
    """

    def __init__(
        self,
        host: str | None,
        name: str,
        options: SshOptions,
        loop: Loop,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name)
        self._python = options.python
        self._by_ssh = host is not None and options.by_ssh
        self._is_here = host is None
        self._at_door = options.at_door
        self._kept = self._is_here and options.kept
        self._loop = loop
        self._say = say
        self._lines = LineBuffer()
        self._said: list[str] = []
        self._ending: str | None = None
        self._patience = _PATIENCE_TICKS
        command = agent_command(host, options)
        self._pid, stdin_fd, stdout_fd, self._stderr_fd = _spawn(command)
        os.set_blocking(self._stderr_fd, False)
        self._pipes = Connection(
            loop,
            stdout_fd,
            stdin_fd,
            on_message=self.take,
            on_end=self._note_end_of_line,
            greeted=False,
        )
        self.open(self._pipes, options.silence_s)
        loop.on_readable(self._stderr_fd, self._read_stderr)
        loop.on_child_end(self._pid, self._note_child_end)

    def give_up(self, reason: str) -> None:
        """Ends the child; at the end of its input the agent ends by itself."""
        self._ending = reason
        self._pipes.close()
        if self._kept:
            self.lose(reason)  # Another launcher may have its ranks by now.
        elif self._pid != _REAPED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _note_child_end(self, ended: Ended) -> None:
        self._pid = _REAPED  # Another child may have that pid next.
        self._pipes.read()  # What it had said before.
        self._pipes.close()
        self._read_stderr()
        self._loop.no_tick(self._wait_for_child)
        self._loop.forget(self._stderr_fd)
        os.close(self._stderr_fd)
        self.has_ended = self._has_agent_ended(ended.returncode)
        self.lose(self._how_it_ended(ended.returncode))

    def _note_end_of_line(self, reason: str) -> None:
        if reason == CLOSED:
            # It has ended, or will at once: then it can be said how.
            self._loop.on_tick(self._wait_for_child)
        else:
            self.give_up(reason)

    def _wait_for_child(self) -> None:
        self._patience -= 1
        if self._patience <= 0:
            self.give_up("its agent has closed the line")

    def _read_stderr(self) -> None:
        while True:
            try:
                data = os.read(self._stderr_fd, 1 << 16)
            except BlockingIOError:
                return
            self._show(self._lines.feed(data) if data else self._lines.finish())
            if not data:
                self._loop.forget(self._stderr_fd)
                return

    def _show(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            # The agent says "ringrun: ", too.
            text = line.decode(errors="replace").strip().removeprefix("ringrun: ")
            if text:
                self._say(f"host {self.name}: {text}")
                self._said = [*self._said[1 - _TOLD_LINES :], text]

    def _has_agent_ended(self, returncode: int) -> bool:
        """Whether that is certain, and not only that its line is lost."""
        if self._is_here:
            return True
        if self._ending is not None or returncode < 0:
            return False
        # ssh ends as its command does, unless it has lost it; `call` well, if so.
        return returncode != LINE_LOST if self._by_ssh else returncode == 0

    def _how_it_ended(self, returncode: int) -> str:
        said = "; ".join(self._said)
        if self._ending is not None:
            return self._ending
        if self._by_ssh and returncode == LINE_LOST:
            if self.hello is None:
                return f"ssh cannot reach it: {said or 'it said nothing'}"
            # So it ends, too, where sshd tells that a signal has killed the agent.
            return f"ssh has ended: {said or 'its agent was killed'}"
        if self.hello is None:
            skipped = self._pipes.skipped.decode(errors="replace").strip()
            said = said or skipped or "it said nothing"
            if returncode in (_NOT_FOUND, _NOT_EXECUTABLE):
                return (
                    f"it cannot run {self._python} ({said}): --remote-python says "
                    "where its Python is"
                )
            if "No module named" in said:
                return (
                    f"{self._python} has no ring_keras there ({said}): install "
                    f"ring_keras {__version__}"
                )
            if self._at_door and returncode == 0:
                return "its agent has ended: nobody listens where it was"
            return f"its agent ended with code {returncode} at once: {said}"
        # A shell, and the agent's front, tell a signal by a code above 128.
        number = -returncode if returncode < 0 else returncode - 128
        if number > 0:
            return f"its agent was killed by {signal_name(number)}"
        if returncode in (0, LINE_LOST):
            return "its agent has closed the line"
        return f"its agent ended with code {returncode}"


def _spawn(command: list[str]) -> tuple[int, int, int, int]:
    """Its pid, and our ends of its input, output and error."""
    stdin_read, stdin_write = os.pipe()
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    ours, theirs = (
        (stdin_write, stdout_read, stderr_read),
        (stdin_read, stdout_write, stderr_write),
    )
    try:
        pid = os.posix_spawnp(
            command[0],
            command,
            inherited_environment(),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in enumerate(theirs)],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return (pid, *ours)
