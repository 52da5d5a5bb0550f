"""What ranks do by themselves, with errors that all of them raise."""

from collections.abc import Callable
from typing import Any

from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.objects import allgather_object, broadcast_object

__all__ = ["of_each_rank", "of_first_rank"]

_KINDS: tuple[type[Exception], ...] = (ImportError, RingKerasError, ValueError)


def of_first_rank(make: Callable[[], Any], name: str, process_set: ProcessSet) -> Any:
    """What the first rank of a set makes; a collective.

    Args:
        make: Called there alone. It may not ask other ranks for anything.
        name: Of what makes it, for messages.
        process_set: Who gets it.

    Raises:
        ImportError, RingKerasError or ValueError: On all ranks, what it raises there;
            other errors are a RingKerasError.
    """
    first = process_set.ranks[0]
    outcome, error = _attempt(make) if process_set.rank() == 0 else (None, None)
    outcome = broadcast_object(outcome, first, name=name, process_set=process_set)
    _require_made(outcome, name, error)
    return outcome["made"]


def of_each_rank(
    make: Callable[[], Any], name: str, process_set: ProcessSet
) -> list[Any]:
    """What each rank of a set makes, by rank; a collective.

    Args:
        make: Called on all. It may not ask other ranks for anything.
        name: Of what makes it, for messages.
        process_set: Who takes part.

    Raises:
        ImportError, RingKerasError or ValueError: See `of_first_rank`; of the first
            rank on which there is one.
    """
    outcome, error = _attempt(make)
    outcomes = allgather_object(outcome, name=name, process_set=process_set)
    for outcome in outcomes:
        _require_made(outcome, name, error)
    return [outcome["made"] for outcome in outcomes]


def _attempt(make: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    try:
        return {"made": make()}, None
    except Exception as error:
        kind = next((k for k in _KINDS if isinstance(error, k)), None)
        said = str(error)
        if kind is None:
            kind, said = RingKerasError, f"{type(error).__name__}: {error}"
        return {"kind": _KINDS.index(kind), "said": said}, error


def _require_made(outcome: dict[str, Any], name: str, error: Exception | None) -> None:
    if "made" not in outcome:
        kind = _KINDS[outcome["kind"]]
        raise kind(f"ring_keras.{name}: {outcome['said']}") from error
