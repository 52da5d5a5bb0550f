"""Room for one rank of an elastic job."""

from __future__ import annotations

from collections.abc import Mapping

import ray

from ring_keras.engines.agent_host import AgentHost
from ring_keras.engines.outcomes import Outcome
from ring_keras.launch.addresses import host_port

__all__ = ["AgentActor"]


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
