"""Errors of which the other ranks know in the call that they end."""

import contextlib

from ring_keras.errors import (
    CommunicationError,
    CorruptDataError,
    RankMismatchError,
    from_tensorflow,
)
from ring_keras.training.calls_under_way import calls_under_way

__all__ = ["OF_OTHERS", "is_known", "note_told"]

# Of an exception: in which call the other ranks have been told of it. Another call may
# raise the same one again, as a thread's that has failed.
_TOLD = "_ring_keras_told_in"

OF_OTHERS = (CommunicationError, CorruptDataError, RankMismatchError)
"""What another rank may have been the first to know."""


def note_told(error: BaseException) -> None:
    """The other ranks know of it; in the call that is under way, if one is."""
    if not calls_under_way():
        return
    with contextlib.suppress(AttributeError):
        setattr(error, _TOLD, _outermost())


def _outermost() -> int:
    """The number of the call in which all that are under way are."""
    return calls_under_way()[0].number


def is_known(error: BaseException, handled: BaseException | None) -> bool:
    """Whether the other ranks know of it, or of what it came of in this call.

    Of what ends the process the store tells.

    Args:
        error: What ended the call.
        handled: What the program was handling when the call began.
    """
    if not isinstance(error, (Exception, KeyboardInterrupt)):
        return True
    seen: list[BaseException] = []
    cause: BaseException | None = error
    # `raise error from error` is its own cause.
    while cause is not None and cause is not handled and cause not in seen:
        if getattr(cause, _TOLD, None) == _outermost():
            return True
        if isinstance(from_tensorflow(cause) or cause, OF_OTHERS):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False
