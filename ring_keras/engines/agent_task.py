"""What an engine's task does for a rank of an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ring_keras.engines.agent_desk import DeskCard, JobIsOverError
from ring_keras.engines.agent_host import AgentHost
from ring_keras.engines.outcomes import Outcome
from ring_keras.launch.addresses import host_port

__all__ = ["outcomes_of_agent"]

_LOOK_INTERVAL_S = 0.5


def outcomes_of_agent(
    desk: DeskCard,
    partition: int,
    attempt: int,
    load_call: Callable[[], bytes],
    serializer: str,
    env: Mapping[str, str],
    look: Callable[[], None],
) -> list[Outcome]:
    """Has ringrun's agent wait below this process, until the job is over.

    Args:
        desk: Which is told where.
        partition: The task's number.
        attempt: A higher one each time that the engine starts that task.
        load_call: The function, pickled; called if the job is not over yet.
        serializer: The module whose `dumps` pickles what that returns.
        env: Variables that each rank gets.
        look: Called twice a second meanwhile; what it raises is raised here.

    Returns:
        What became of each process that the agent has started.

    Raises:
        RuntimeError: If the agent does not start, or ends.
        OSError: If the desk is not reached, or the line to it breaks.
    """
    try:
        with desk.visited() as visit:
            address = visit.own_address
            host = AgentHost(address, desk.token, load_call(), serializer, env)
            try:
                visit.say(partition, attempt, host_port(address, host.port))
                while not visit.is_over(_LOOK_INTERVAL_S):
                    look()
                    if not host.is_running():
                        raise RuntimeError("ringrun's agent has ended")
                return host.outcomes()
            finally:
                host.end()
    except JobIsOverError:
        return []
