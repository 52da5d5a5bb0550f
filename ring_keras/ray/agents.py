"""The actors that an elastic job has, as they come and go."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from ring_keras.engines.agent_host import AgentHost
from ring_keras.engines.outcomes import Outcome
from ring_keras.launch.addresses import host_port

__all__ = ["AgentActor", "Agents", "StillbornError"]

_END_S = 10.0
# So many in a row that fail to start are the last. The others wait ever longer.
_MAX_STILLBORN = 3


class AgentActor:
    """An actor that holds a rank's resources; below it ringrun's agent starts the rank.

    Args:
        token: What ringrun must know to be answered.
        call: The function, pickled by Ray's cloudpickle.
        env: Variables that the rank gets.
    """

    def __init__(self, token: bytes, call: bytes, env: Mapping[str, str]) -> None:
        address = ray.util.get_node_ip_address()
        self._host = AgentHost(address, token, call, "ray.cloudpickle", env)
        self._address = host_port(address, self._host.port)

    def address(self) -> str:
        """Where the agent waits: host and port.

        Raises:
            RuntimeError: If it has ended.
        """
        if not self._host.is_running():
            raise RuntimeError(f"ringrun's agent at {self._address} has ended")
        return self._address

    def outcomes(self) -> list[Outcome]:
        """See `AgentHost.outcomes`."""
        return self._host.outcomes()

    def end(self) -> None:
        """Ends what is below it, and leaves no file."""
        self._host.end()


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
        least: With fewer there is no job.
        most: How many there shall be.
    """

    def __init__(self, start: Callable[[], Any], least: int, most: int) -> None:
        self._start = start
        self._least = least
        self._most = most
        self._job = secrets.token_hex(4)
        self._started = self._stillborn = 0
        self._next_start_at = 0.0
        self._by_name: dict[str, _Agent] = {}
        self.losses: list[str] = []
        """How those ended that are not there any more."""

    def advance(self) -> dict[str, str]:
        """Does what is due; the address of each that is there, by name.

        Raises:
            StillbornError: If several in a row could not be started.
        """
        for name, agent in list(self._by_name.items()):
            ready, _ = ray.wait([agent.asked], timeout=0)
            if ready:
                self._take_answer(name, agent)
        now = time.monotonic()
        while len(self._by_name) < self._most and now >= self._next_start_at:
            self._start_one()
        return {
            name: agent.address
            for name, agent in self._by_name.items()
            if agent.address is not None
        }

    def _start_one(self) -> None:
        # No host has such a name, so that none is taken for the launcher's own.
        name = f"worker{self._started}-{self._job}.invalid"
        actor = self._start()
        self._by_name[name] = _Agent(actor, actor.address.remote())
        self._started += 1

    def _take_answer(self, name: str, agent: _Agent) -> None:
        try:
            address = ray.get(agent.asked)
        except ray.exceptions.RayError as error:
            self._lose(name, agent, error)
            return
        if agent.address is None:
            agent.address, self._stillborn = address, 0
        agent.asked = agent.actor.address.remote()

    def _lose(self, name: str, agent: _Agent, error: ray.exceptions.RayError) -> None:
        del self._by_name[name]
        ray.kill(agent.actor)
        self.losses.append(f"{agent.address or name}: {_first_line(error)}")
        if not getattr(error, "actor_init_failed", False):
            return
        # Not a node's or a process's end: the next one would fail, too.
        self._stillborn += 1
        self._next_start_at = time.monotonic() + 2.0**self._stillborn
        there = sum(agent.address is not None for agent in self._by_name.values())
        if self._stillborn >= _MAX_STILLBORN and there < self._least:
            raise StillbornError(
                f"{self._stillborn} workers in a row did not start. {error}"
            ) from None

    def outcomes(self) -> list[Outcome]:
        """What all processes of those that are there have left."""
        found: list[Outcome] = []
        there = [agent for agent in self._by_name.values() if agent.address is not None]
        for asked in [agent.actor.outcomes.remote() for agent in there]:
            try:
                found += ray.get(asked)
            except ray.exceptions.RayError as error:
                self.losses.append(_first_line(error))
        return found

    def end(self) -> None:
        """Ends all."""
        agents = list(self._by_name.values())
        there = [agent.actor.end.remote() for agent in agents if agent.address]
        if there:
            ray.wait(there, num_returns=len(there), timeout=_END_S)
        for agent in agents:
            ray.kill(agent.actor)
        self._by_name.clear()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
