"""Writes in other threads, in each one thing after the other."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from absl import logging

__all__ = ["BackgroundWrite", "wait_for_all_writes"]

_Kind = Literal["backup", "checkpoint"]

# What an earlier `fit` has left to write comes first. But a signal's backup, for which
# there may be seconds, does not wait for a checkpoint. A process that ends waits for
# both.
_THREADS: dict[_Kind, ThreadPoolExecutor] = {
    "backup": ThreadPoolExecutor(1, thread_name_prefix="ring_keras-backup"),
    "checkpoint": ThreadPoolExecutor(1, thread_name_prefix="ring_keras-checkpoint"),
}


def wait_for_all_writes() -> None:
    """Until all that this process has begun to write is written, or has failed."""
    for last in [thread.submit(lambda: None) for thread in _THREADS.values()]:
        last.result()


class BackgroundWrite:
    """What one callback writes: at most one thing, while none waits.

    Args:
        kind: Of what it writes.
    """

    def __init__(self, kind: _Kind) -> None:
        self._thread = _THREADS[kind]
        self._write: Future[None] | None = None

    def begin(self, task: Callable[[], None]) -> None:
        """Has it done; `wait` for the one before first."""
        self._write = self._thread.submit(task)
        self._write.add_done_callback(_log_failure)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the last one is done.

        Raises:
            concurrent.futures.TimeoutError: If it takes longer.
            Exception: Why it has failed; once.
        """
        write = self._write
        if write is None:
            return
        try:
            write.result(timeout_s)
        finally:
            if write.done():
                self._write = None

    def has_failed(self) -> bool:
        """Whether `wait` would raise, as far as is known."""
        write = self._write
        return write is not None and write.done() and write.exception() is not None

    def forget(self) -> None:
        """What becomes of the last one is of no interest any more."""
        self._write = None


def _log_failure(write: Future[None]) -> None:
    """At once, and even if `fit` ends by something else."""
    error = write.exception()
    if error is not None:
        logging.error("ring_keras: %s", error)
