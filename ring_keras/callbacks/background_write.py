"""Writes in another thread, one thing after the other."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from absl import logging

__all__ = ["BackgroundWrite", "wait_for_all_writes"]

# One for all: what an earlier `fit` has left to write comes first. A process that ends
# waits for it.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="ring_keras-backup")


def wait_for_all_writes() -> None:
    """Until all that this process has begun to write is written, or has failed."""
    _THREAD.submit(lambda: None).result()


class BackgroundWrite:
    """What one callback writes: at most one thing, while none waits."""

    def __init__(self) -> None:
        self._write: Future[None] | None = None

    def begin(self, task: Callable[[], None]) -> None:
        """Has it done; `wait` for the one before first."""
        self._write = _THREAD.submit(task)
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
