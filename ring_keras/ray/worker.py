"""What happens in a process of Ray's that is a rank."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from ring_keras.engines.rank_start import RankStart

__all__ = [
    "become_rank",
    "cease_as_rank",
    "leave_job",
    "leaving_on_failure",
    "rank_of_a_job",
]

_environment = contextlib.ExitStack()


def become_rank(start: RankStart) -> None:
    """From now on `init()` finds what it needs.

    Call it before the function is unpickled, which may bring TensorFlow.
    """
    _environment.enter_context(start.in_environment())


def cease_as_rank() -> None:
    """Undoes that; again it has no effect."""
    _environment.close()


def leave_job(reason: str) -> None:
    """Leaves the job if this process has joined it."""
    # If nobody has imported it, nobody has joined.
    membership = sys.modules.get("ring_keras.lifecycle.membership")
    if membership is not None:
        membership.shutdown(reason)


@contextlib.contextmanager
def leaving_on_failure() -> Iterator[None]:
    """What fails here leaves the job, so that no other rank waits for this one."""
    try:
        yield
    except BaseException as error:
        leave_job(f"raised {type(error).__name__}: {error}")
        raise


@contextlib.contextmanager
def rank_of_a_job() -> Iterator[None]:
    """Meanwhile the function runs. It leaves the job at its end, however it ends."""
    try:
        with leaving_on_failure():
            yield
        leave_job("its function ended")
    finally:
        cease_as_rank()
