"""A stage of Spark's whose tasks stay until they are told to end."""

from __future__ import annotations

import pickle
import secrets
import time

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from ring_keras.engines.outcomes import Outcome, RankFailedError
from ring_keras.spark.agent_task import SCHEMA, AgentTask

__all__ = ["TaskStage"]

_END_S = 30.0


class TaskStage:
    """Runs it in a thread, until the end of a `with` statement at most.

    Args:
        session: Spark's.
        task: What each task does.
        count: How many there are; those that fail Spark starts again.

    Attributes:
        problems: Why there are no outcomes.
    """

    def __init__(self, session: SparkSession, task: AgentTask, count: int) -> None:
        self._session = session
        self._frame = session.range(0, count, 1, count).mapInArrow(task, SCHEMA)
        self._tag = f"ring-keras-{secrets.token_hex(4)}"
        self._outcomes: list[Outcome] = []
        self.problems: list[str] = []
        self._thread = InheritableThread(target=self._collect, session=session)
        self._thread.daemon = True
        self._thread.start()

    def __enter__(self) -> TaskStage:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._session.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(_END_S)

    def require_running(self) -> None:
        """Returns while its tasks are there, or may come.

        Raises:
            RankFailedError: If Spark has given it up.
        """
        if not self._thread.is_alive():
            raise RankFailedError(
                None,
                "Spark has given up the stage whose tasks are the ranks. It does so "
                "when one task has failed spark.task.maxFailures times: 4 by default, "
                "and 1 with local[N]",
                "\n".join(self.problems),
            )

    def outcomes(self, deadline: float) -> list[Outcome]:
        """What became of all processes, once the tasks have been told to end.

        Those whose tasks were lost are missing; all are, if the stage fails now.

        Args:
            deadline: Of the monotonic clock.
        """
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.5)
        if self._thread.is_alive():
            self.problems.append("Spark's tasks have not ended in time")
        return self._outcomes

    def _collect(self) -> None:
        self._session.sparkContext.addJobTag(self._tag)
        try:
            rows = self._frame.collect()
        except Exception as error:  # The thread that waits tells it.
            self.problems.append(str(error))
            return
        self._outcomes = [pickle.loads(row["outcome"]) for row in rows]
