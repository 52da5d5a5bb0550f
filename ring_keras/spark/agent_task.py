"""What a task of Spark's does for a rank of an elastic job."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from ring_keras.engines.agent_host import AgentHost
from ring_keras.engines.outcomes import Outcome
from ring_keras.launch.addresses import host_port
from ring_keras.spark.agent_desk import DeskCard, JobIsOverError

__all__ = ["SCHEMA", "AgentTask"]

SCHEMA = "outcome binary"
_LOOK_INTERVAL_S = 0.5


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
        try:
            with self.desk.visited() as visit:
                host = AgentHost(
                    visit.own_address,
                    self.desk.token,
                    self.call.value,
                    "pyspark.cloudpickle",
                    self.env,
                )
                try:
                    context = TaskContext.get()
                    assert context is not None
                    visit.say(
                        context.partitionId(),
                        context.taskAttemptId(),
                        host_port(visit.own_address, host.port),
                    )
                    while not visit.is_over(_LOOK_INTERVAL_S):
                        if not host.is_running():
                            # Spark starts the task again.
                            raise RuntimeError("ringrun's agent has ended")
                    return host.outcomes()
                finally:
                    host.end()
        except JobIsOverError:
            return []
