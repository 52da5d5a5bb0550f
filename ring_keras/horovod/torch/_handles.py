"""Collectives under way, and the numbers by which a program asks for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ring_keras import _native
from ring_keras.job.job import PerJob, current_job

__all__ = ["Pending", "keep", "poll", "synchronize"]


class Pending:
    """A collective that has begun.

    Args:
        operations: What the engine makes of it.
        finish: Makes the result, once all of them have ended well.
    """

    def __init__(
        self,
        operations: Sequence[_native.HostOperation | Pending],
        finish: Callable[[], Any],
    ) -> None:
        self._operations = operations
        self._finish = finish

    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return all(operation.is_done() for operation in self._operations)

    def wait(self) -> None:
        """Returns when all have ended.

        Raises:
            RingKerasError: The first one's error; the others have ended as well.
        """
        error: BaseException | None = None
        for operation in self._operations:
            try:
                operation.wait()
            except BaseException as problem:
                error = error or problem
        if error is not None:
            raise error

    def result(self) -> Any:
        """Waits, and makes the result: once."""
        self.wait()
        return self._finish()


# Numbers are never used again, in another job neither.
_numbers = itertools.count(1)
# It keeps the tensors of those that nobody has waited for.
_pending: PerJob[dict[int, Pending]] = PerJob(dict)


def keep(pending: Pending) -> int:
    """The number for `poll` and `synchronize`."""
    handle = next(_numbers)
    _pending.of(current_job())[handle] = pending
    return handle


def poll(handle: int) -> bool:
    """Whether a collective has ended, so that `synchronize` returns at once.

    Args:
        handle: What a function whose name has `_async` in it has returned.

    Raises:
        ValueError: If there is no such collective in this job.
    """
    return _of(handle).is_done()


def synchronize(handle: int) -> Any:
    """Waits for a collective.

    Args:
        handle: What a function whose name has `_async` in it has returned. It stands
            for nothing afterwards.

    Returns:
        What the same function without `_async` returns.

    Raises:
        ValueError: If there is no such collective in this job, or its result was
            fetched before.
        RingKerasError: What the collective has failed of, as on the other ranks.
    """
    pending = _of(handle)
    try:
        return pending.result()
    finally:
        _pending.of(current_job()).pop(handle, None)


def _of(handle: int) -> Pending:
    pending = _pending.of(current_job()).get(handle)
    if pending is None:
        raise ValueError(
            f"[RK148] there is no collective with the handle {handle!r} in this job, "
            "or synchronize() has returned its result before. A handle is good for "
            "one synchronize(), between hvd.init() and hvd.shutdown()."
        )
    return pending
