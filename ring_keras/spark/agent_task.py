"""What a task of Spark's does for a rank of an elastic job."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from ring_keras.engines.agent_desk import DeskCard
from ring_keras.engines.agent_task import outcomes_of_agent
from ring_keras.engines.outcomes import Outcome

__all__ = ["SCHEMA", "AgentTask"]

SCHEMA = "outcome binary"


@dataclasses.dataclass(frozen=True)
class AgentTask:
    """What all tasks of a job have in common; the function of a stage.

    Attributes:
        desk: Which agents are told to.
        call: A broadcast variable with the function, pickled.
        env: Variables that each rank gets.
    """

    desk: DeskCard
    call: Any
    env: dict[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Has ringrun's agent wait, until the job is over; what comes in means nothing.

        Yields:
            What became of each process that the agent has started.
        """
        for _ in batches:
            pass
        outcomes = [pickle.dumps(one) for one in self._outcomes()]
        yield pa.RecordBatch.from_arrays(
            [pa.array(outcomes, pa.binary())], names=["outcome"]
        )

    def _outcomes(self) -> list[Outcome]:
        context = TaskContext.get()
        assert context is not None
        return outcomes_of_agent(
            self.desk,
            context.partitionId(),
            context.taskAttemptId(),
            lambda: self.call.value,
            "pyspark.cloudpickle",
            self.env,
            # Spark itself ends it with the stage, and starts it again when it fails.
            lambda: None,
        )
