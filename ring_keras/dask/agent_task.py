"""What a task of Dask's does for a rank of an elastic job."""

from __future__ import annotations

import dataclasses
import time

from ring_keras.dask.task_look import GivenUpError, look_of_this_task
from ring_keras.engines.agent_desk import DeskCard
from ring_keras.engines.agent_task import outcomes_of_agent
from ring_keras.engines.outcomes import Outcome

__all__ = ["AgentTask"]


@dataclasses.dataclass(frozen=True)
class AgentTask:
    """What all tasks of a job have in common.

    Attributes:
        desk: Which agents are told to.
        call: The function, pickled.
        env: Variables that each rank gets.
    """

    desk: DeskCard
    call: bytes
    env: dict[str, str]

    def run(self, number: int) -> list[Outcome]:
        """Has ringrun's agent wait, until the job is over.

        Args:
            number: No other task of the job has it.

        Returns:
            What became of each process that the agent has started.
        """
        try:
            return outcomes_of_agent(
                self.desk,
                number,
                # Dask starts a task again if its worker dies and comes back at once.
                time.time_ns(),
                lambda: self.call,
                "cloudpickle",
                self.env,
                look_of_this_task(),
            )
        except GivenUpError:
            return []
