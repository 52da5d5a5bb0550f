"""What happens in a worker of Ray Train that is a rank."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from ring_keras.engines.rank_start import RankStart

__all__ = ["become_rank", "cease_as_rank", "rank_of_a_job"]

_environment = contextlib.ExitStack()


def become_rank(start: RankStart) -> None:
    """From now on `init()` finds what it needs.

    Call it before the function is unpickled, which may bring TensorFlow.
    """
    _environment.enter_context(start.in_environment())


def cease_as_rank() -> None:
    """Undoes that; again it has no effect."""
    _environment.close()


@contextlib.contextmanager
def rank_of_a_job() -> Iterator[None]:
    """Meanwhile the function runs. It leaves the job at its end, however it ends."""
    try:
        yield
    except BaseException as error:
        _leave_job(f"raised {type(error).__name__}: {error}")
        raise
    else:
        _leave_job("its function ended")
    finally:
        cease_as_rank()


def _leave_job(reason: str) -> None:
    # If nobody has imported it, nobody has joined.
    membership = sys.modules.get("ring_keras.lifecycle.membership")
    if membership is not None:
        membership.shutdown(reason)
