"""The tasks that an elastic job has, on workers that come and go."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import distributed
from distributed.client import ClosedClientError

from ring_keras.dask.agent_task import AgentTask
from ring_keras.dask.workers import workers_of
from ring_keras.engines.agent_desk import AgentDesk
from ring_keras.engines.outcomes import Outcome, RankFailedError

__all__ = ["AgentTasks"]

_LOOK_INTERVAL_S = 0.5
_RESULT_TIMEOUT_S = 10.0
# Within a second, unless a host is gone without a word.
_END_S = 30.0
_MAX_REST_S = 60.0
# So many in a row that have no agent are the last, if the job needs them.
_MAX_STILLBORN = 3


@dataclass
class _Task:
    number: int
    future: distributed.Future


@dataclass
class _Rest:
    """A worker's, whose task has ended; each is twice as long, up to a minute."""

    length_s: float = 1.0
    until: float = 0.0

    def begin(self) -> None:
        self.length_s = min(2 * self.length_s, _MAX_REST_S)
        self.until = time.monotonic() + self.length_s


class AgentTasks:
    """One on each worker, as many as a job may have ranks; until a `with` ends.

    Args:
        client: Of the cluster.
        task: What each does.
        desk: Where they tell of their agents.
        least: With fewer there is no job.
        most: How many there shall be.

    Attributes:
        problems: Why the last task of a worker has failed, by the worker.
    """

    def __init__(
        self,
        client: distributed.Client,
        task: AgentTask,
        desk: AgentDesk,
        least: int,
        most: int,
    ) -> None:
        self._client = client
        self._task = task
        self._desk = desk
        self._least = least
        self._most = most
        self._job = f"ring-keras-{secrets.token_hex(8)}"
        self._started = self._stillborn = 0
        self._by_worker: dict[str, _Task] = {}
        self._rests: dict[str, _Rest] = {}
        self._outcomes: list[Outcome] = []
        self.problems: dict[str, str] = {}

    def __enter__(self) -> AgentTasks:
        return self

    def __exit__(self, *_: object) -> None:
        # Without a scheduler or a client there are no tasks.
        with contextlib.suppress(ClosedClientError, OSError, RuntimeError):
            self._cancel(list(self._by_worker))

    def advance(self) -> dict[str, str]:
        """Does what is due; the address of each agent that is there, by name.

        Raises:
            RankFailedError: If there is no scheduler more, it has cancelled them, or
                several in a row had no agent.
        """
        workers = self._workers()
        for worker, number in self._settle(workers):
            self._rests.setdefault(worker, _Rest()).begin()
            if not self._desk.has_had(number):
                self._count_stillborn(worker)
        self._start(workers)
        agents = self._desk.agents()
        if len(agents) >= self._least:
            self._stillborn = 0
        return agents

    def dismiss(self, timeout_s: float) -> list[Outcome]:
        """Tells the tasks to end; what became of all processes.

        Those whose tasks were lost are missing.

        Args:
            timeout_s: For results to come, which may be large.

        Raises:
            RankFailedError: If there is no scheduler more, or it has cancelled them.
        """
        # That may be why the job has ended.
        self._settle(self._workers())
        # Those that have not begun, or do not answer, are not waited for.
        self._cancel(
            worker
            for worker, task in self._by_worker.items()
            if not self._desk.has(task.number)
        )
        self._desk.dismiss()
        deadline = time.monotonic() + _END_S
        while self._by_worker and time.monotonic() < deadline:
            futures = [task.future for task in self._by_worker.values()]
            with contextlib.suppress(
                distributed.TimeoutError, distributed.CancelledError
            ):
                distributed.wait(futures, _LOOK_INTERVAL_S)
            self._settle(self._workers(), timeout_s)
        self.problems |= dict.fromkeys(self._by_worker, "Dask's task has not ended")
        return self._outcomes

    def _workers(self) -> Mapping[str, Mapping[str, Any]]:
        if self._client.status == "running":
            with contextlib.suppress(OSError):
                return workers_of(self._client)
        raise RankFailedError(
            None, "the client has lost Dask's scheduler, and the ranks' tasks with it"
        )

    def _settle(
        self, workers: Iterable[str], timeout_s: float = _RESULT_TIMEOUT_S
    ) -> list[tuple[str, int]]:
        """Takes what tasks that have ended have to tell; their workers and numbers."""
        if any(task.future.cancelled() for task in self._by_worker.values()):
            raise RankFailedError(
                None,
                "Dask has cancelled the ranks' tasks: the cluster was restarted, or "
                "the client had lost its scheduler for a while",
            )
        # Dask would have them wait for a worker with that address.
        self._cancel(set(self._by_worker).difference(workers))
        ended = []
        for worker, task in list(self._by_worker.items()):
            if task.future.done():
                try:
                    self._outcomes += task.future.result(timeout_s)
                except Exception as error:  # Whatever has failed in the task.
                    self.problems[worker] = f"{type(error).__name__}: {error}"
                self._cancel([worker])
                ended.append((worker, task.number))
        return ended

    def _count_stillborn(self, worker: str) -> None:
        """A task had no agent there: the next one would not have one, either."""
        self._stillborn += self._count() < self._least
        if self._stillborn >= _MAX_STILLBORN:
            problem = self.problems.get(worker, "the task has ended without an agent")
            raise RankFailedError(
                None,
                f"{self._stillborn} of Dask's tasks in a row did not start, and the "
                f"job needs {self._least}. {worker}: {problem}",
            )

    def _count(self) -> int:
        """Of tasks that have an agent, or may get one."""
        numbers = [task.number for task in self._by_worker.values()]
        return sum(self._desk.has(n) or not self._desk.has_had(n) for n in numbers)

    def _start(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        now = time.monotonic()
        none = _Rest()
        free = [
            worker
            for worker, info in workers.items()
            if worker not in self._by_worker
            and info["status"] == "running"
            and now >= self._rests.get(worker, none).until
        ]
        # First those that have started tasks, and have a thread for another.
        free.sort(
            key=lambda worker: (
                self._rests.get(worker, none).length_s,
                _is_busy(workers[worker]),
            )
        )
        for worker in free[: max(0, self._most - self._count())]:
            future = self._client.submit(
                self._task.run,
                self._started,
                workers=[worker],
                key=f"{self._job}-agent-{self._started}",
                pure=False,
            )
            self._by_worker[worker] = _Task(self._started, future)
            self._started += 1

    def _cancel(self, workers: Iterable[str]) -> None:
        futures = [self._by_worker.pop(worker).future for worker in list(workers)]
        if futures:
            self._client.cancel(futures)


def _is_busy(info: Mapping[str, Any]) -> bool:
    counts = info["metrics"].get("task_counts", {})
    tasks = sum(counts.get(state, 0) for state in ("executing", "ready"))
    return bool(tasks >= info["nthreads"])
