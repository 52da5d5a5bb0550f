"""The actors that an elastic job has, as they come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from ring_keras.engines.elastic_rank import Report

__all__ = ["Agents", "StillbornError"]

# Of those that have just been lost.
_REPORT_S = 10.0
# So many in a row that fail to start are the last.
_MAX_STILLBORN = 3


class StillbornError(RuntimeError):
    """Workers do not start, wherever Ray puts them."""


@dataclass
class _Agent:
    actor: Any
    asked: Any
    """What it will answer; until it does, Ray has no room for it, or it is lost."""
    address: str | None = None


class Agents:
    """As many as a job may have ranks, each anew when it is lost.

    Args:
        start: Starts an `AgentActor`.
        count: How many there shall be.
    """

    def __init__(self, start: Callable[[], Any], count: int) -> None:
        self._start = start
        self._count = count
        self._started = self._stillborn = 0
        self._by_name: dict[str, _Agent] = {}
        self.losses: list[str] = []
        """How those ended that are not there any more."""

    def advance(self) -> dict[str, str]:
        """Does what is due; the address of each that is there, by name.

        Raises:
            StillbornError: If several in a row have not started.
        """
        for name, agent in list(self._by_name.items()):
            ready, _ = ray.wait([agent.asked], timeout=0)
            if not ready:
                continue
            try:
                agent.address = ray.get(agent.asked)
            except ray.exceptions.RayError as error:
                self.losses.append(f"{agent.address or name}: {_first_line(error)}")
                self._stillborn += agent.address is None
                if self._stillborn >= _MAX_STILLBORN:
                    raise StillbornError(
                        f"{self._stillborn} workers in a row did not start. {error}"
                    ) from None
                del self._by_name[name]
                ray.kill(agent.actor)
            else:
                self._stillborn = 0
                agent.asked = agent.actor.address.remote()
        while len(self._by_name) < self._count:
            actor = self._start()
            self._by_name[f"worker{self._started}"] = _Agent(
                actor, actor.address.remote()
            )
            self._started += 1
        return {
            name: agent.address
            for name, agent in self._by_name.items()
            if agent.address is not None
        }

    def reports(self) -> list[Report]:
        """What all processes of those that are there have left."""
        found: list[Report] = []
        there = [agent for agent in self._by_name.values() if agent.address is not None]
        for asked in [agent.actor.reports.remote() for agent in there]:
            with contextlib.suppress(ray.exceptions.RayError):
                found += ray.get(asked, timeout=_REPORT_S)
        return found

    def end(self) -> None:
        """Ends all."""
        agents = list(self._by_name.values())
        there = [agent.actor.end.remote() for agent in agents if agent.address]
        if there:
            ray.wait(there, num_returns=len(there), timeout=_REPORT_S)
        for agent in agents:
            ray.kill(agent.actor)
        self._by_name.clear()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
