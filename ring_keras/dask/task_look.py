"""Whether anybody still waits for what a task of Dask's does."""

from __future__ import annotations

import functools

import distributed
from distributed import Status, get_worker

__all__ = ["GivenUpError", "look_of_this_task"]


class GivenUpError(Exception):
    """Nobody waits for the task any more."""


def look_of_this_task() -> functools.partial[None]:
    """A function for its thread to call now and then.

    It raises `GivenUpError` once the task is cancelled, or its client, scheduler or
    worker is gone.
    """
    worker = get_worker()
    return functools.partial(_look, worker, worker.get_current_task())


def _look(worker: distributed.Worker, key: object) -> None:
    task = worker.state.tasks.get(key)
    serves = worker.status in (Status.running, Status.paused)
    if not serves or task is None or task.state != "executing":
        raise GivenUpError
