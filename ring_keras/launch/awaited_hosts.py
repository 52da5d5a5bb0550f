"""Hosts that a script names before the job begins, of which some are not up yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ring_keras.launch.agent_crew import AgentCrew
from ring_keras.launch.agent_line import AgentLine
from ring_keras.launch.desk import Desk
from ring_keras.launch.discovery import HostScript
from ring_keras.launch.hosts import Host

__all__ = ["COME_TIMEOUT_S", "AwaitedHosts"]

COME_TIMEOUT_S = 120.0
"""From the first word to a host until its agent has greeted, or is ready."""


@dataclass
class _Tried:
    crew: AgentCrew
    began_at: float
    losses: int = 0
    again_at: float | None = None
    """When it is tried again; None: it is there, or under way."""
    told: str = ""

    @property
    def is_there(self) -> bool:
        line = self.crew.line
        has_greeted = line.gone is None and line.hello is not None
        return has_greeted and line.version_problem() is None


class AwaitedHosts:
    """Tries hosts again until there are enough, as the fleet does once the job runs.

    Args:
        crews: Of the hosts that have been tried, by how messages call them.
        connect: Begins to connect to a host's agent.
        desk: The launcher's, of a job with a script.
    """

    def __init__(
        self,
        crews: Mapping[str, AgentCrew],
        connect: Callable[[Host], AgentCrew],
        desk: Desk,
    ) -> None:
        self._connect = connect
        self._desk = desk
        assert desk.options.elastic is not None
        self._options = desk.options.elastic
        now = time.monotonic()
        self._tried = {title: _Tried(crew, now) for title, crew in crews.items()}
        self._problems: dict[str, str] = {}  # Of those that were not even tried.

    def wait(self) -> dict[str, AgentCrew]:
        """Until there are slots for --min-np ranks, or --elastic-timeout is over.

        Returns:
            The crews of the hosts that the script names by then, also of those that
            are not there.
        """
        if not self._are_enough():
            self._note_losses()
            self._ask_script()
        for tried in self._tried.values():
            if not tried.is_there:
                _end(tried.crew.line, "it was not there in time")
        return {title: tried.crew for title, tried in self._tried.items()}

    def _ask_script(self) -> None:
        assert self._options.discovery is not None
        desk = self._desk
        script = HostScript(
            self._options.discovery, desk.loop, self._take, desk.output.say
        )
        try:
            desk.run_until(self._are_enough, self._options.timeout_s)
        finally:
            script.finish()

    def _are_enough(self) -> bool:
        there = [tried.crew.slots for tried in self._tried.values() if tried.is_there]
        return sum(there) >= self._options.min_size

    def _take(self, hosts: Sequence[Host]) -> None:
        """These are the hosts."""
        self._note_losses()
        now = time.monotonic()
        named = {f"host {host.name}": host for host in hosts}
        for title in [title for title in self._tried if title not in named]:
            _end(self._tried.pop(title).crew.line, "it is no longer named")
        for title, host in named.items():
            tried = self._tried.get(title)
            if tried is not None:
                tried.crew.stay(host.slots)
            if tried is None or (tried.again_at is not None and now >= tried.again_at):
                self._try(title, host)

    def _try(self, title: str, host: Host) -> None:
        try:
            crew = self._connect(host)
        except OSError as error:  # As of processes; another time it can be done.
            if self._problems.get(title) != str(error):  # It is tried each second.
                self._problems[title] = str(error)
                self._desk.output.say(f"elastic: {title} cannot be reached: {error}")
            return
        tried = self._tried.setdefault(title, _Tried(crew, 0.0))
        tried.crew, tried.began_at, tried.again_at = crew, time.monotonic(), None

    def _note_losses(self) -> None:
        now = time.monotonic()
        for title, tried in self._tried.items():
            line = tried.crew.line
            if line.hello is not None:
                problem = line.version_problem()
                if problem is not None:
                    _end(line, problem)
            elif now - tried.began_at > COME_TIMEOUT_S:
                _end(line, f"it did not greet within {COME_TIMEOUT_S:g} s")
            if line.gone is None or tried.again_at is not None:
                continue
            tried.losses += 1
            tried.again_at = now + self._options.cooldown_after_s(tried.losses)
            if tried.told != line.gone:
                tried.told = line.gone
                self._desk.output.say(
                    f"elastic: {title} is not there yet, and is tried again: "
                    f"{tried.told}"
                )


def _end(line: AgentLine, why: str) -> None:
    """Its agent counts as gone from now on, and what keeps the line is ended."""
    line.lose(why)
    line.give_up(why)
