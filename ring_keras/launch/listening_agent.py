"""`python -m ring_keras.launch.listening_agent`: waits for launchers' calls.

For hosts without sshd, such as pods. Who calls and shows that it holds the secret
gets an agent, as ssh would start it; `ringrun --agent-port` calls.
"""

from __future__ import annotations

import argparse
import functools
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

from ring_keras._libraries import build_problem
from ring_keras.config import ConfigError, read_token, split_address
from ring_keras.launch.agent import Agent
from ring_keras.launch.door import Door, Guest
from ring_keras.launch.guard import (
    FORWARDED_SIGNALS,
    RANKS_SIGNALS,
    open_standard_descriptors,
    reap,
    run_guarded,
)
from ring_keras.launch.loop import TICK_S, wake_on_signals
from ring_keras.launch.output import say
from ring_keras.launch.secret_proof import CALLED, CALLER

__all__ = ["serve_calls"]


class _Switchboard:
    """Gives each caller a process of its own.

    Args:
        listener: Where they come; does not block.
        token: The secret.
    """

    def __init__(self, listener: socket.socket, token: bytes) -> None:
        self._listener = listener
        self._door = Door(listener, token, CALLER, {}, self._admit, say)
        self._agents: list[int] = []

    def serve(self) -> int:
        """Until a signal asks to end; returns the exit code."""
        wake_fd, _ = wake_on_signals()
        while True:
            fds = [self._door.fileno(), wake_fd]
            readable, _, _ = select.select(fds, [], [], TICK_S)
            if wake_fd in readable:
                asked = set(os.read(wake_fd, 4096)) - {signal.SIGCHLD}
                self._reap()
                for warning in asked.intersection(RANKS_SIGNALS):
                    self._signal_agents(warning)
                asked.difference_update(RANKS_SIGNALS)
                if asked:
                    return self._end(min(asked))
            if self._door.fileno() in readable:
                self._door.serve()
            self._door.tick()

    def _admit(self, guest: Guest) -> None:
        # A signal that comes before the other process is ready waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:  # Too many of something: the caller tries again.
            say(f"a call of {guest.address} cannot be taken: {error}")
        else:
            if pid == 0:
                self._answer(guest)
            self._agents.append(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
        guest.peer.close()

    def _answer(self, guest: Guest) -> None:
        """In a process of its own."""
        code = 1
        try:
            self._door.close_copies()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = run_guarded(
                lambda *given: Agent(*given).run(
                    functools.partial(guest.welcome, CALLED), guest.came
                ),
                what="agent",
            )
        finally:
            os._exit(code)

    def _reap(self) -> None:
        # All: as a container's first process this one gets what others leave.
        while (ended := reap()) is not None:
            if ended.pid in self._agents:
                self._agents.remove(ended.pid)

    def _signal_agents(self, number: int) -> None:
        for pid in self._agents:
            os.kill(pid, number)

    def _end(self, number: int) -> int:
        """Agents end their ranks, and are waited for."""
        self._listener.close()
        self._signal_agents(number)
        for pid in self._agents:
            os.waitpid(pid, 0)
        return 128 + number


def main(arguments: Sequence[str] | None = None) -> int:
    """Waits for calls; returns the exit code."""
    open_standard_descriptors()
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        token = read_token(options.secret_file, "--secret-file")
        host, port = split_address(options.listen)
    except ConfigError as error:
        parser.error(str(error))
    except ValueError:
        parser.error(f"--listen must be HOST:PORT, not {options.listen}")
    problem = build_problem()
    if problem is not None:
        say(problem)
        return 1
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        parser.error(f"--listen {options.listen}: {error.strerror}")
    say(f"an agent waits at {options.listen}")
    return serve_calls(listener, token)


def serve_calls(listener: socket.socket, token: bytes) -> int:
    """Gives launchers that hold the secret their agents, until a signal asks to end.

    Returns:
        The exit code that goes with that signal.
    """
    listener.setblocking(False)
    return _Switchboard(listener, token).serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ring_keras.launch.listening_agent",
        description="Waits for `ringrun -H HOST,... --agent-port PORT` of another "
        "host, and starts, watches and ends its ranks here, until SIGTERM or Ctrl-C.",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="an address of this host that ringrun's host reaches, and a free port",
    )
    parser.add_argument(
        "--secret-file",
        required=True,
        metavar="FILE",
        help="64 hexadecimal digits: (umask 077; openssl rand -hex 32 > FILE)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
