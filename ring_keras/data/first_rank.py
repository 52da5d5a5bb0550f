"""What the first rank looks up for all, and its error, which all of them raise."""

from collections.abc import Callable
from typing import Any

from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import broadcast_object

__all__ = ["of_first_rank"]

_KINDS: tuple[type[Exception], ...] = (RingKerasError, ValueError)


def of_first_rank(name: str, look: Callable[[], str], process_set: ProcessSet) -> str:
    """What looking brings on the first rank of a process set; a collective.

    Args:
        name: Of the function in `ring_keras` that looks.
        look: Called there alone. It may not ask other ranks for anything.
        process_set: Ranks that take part.

    Raises:
        RingKerasError or ValueError: On all ranks, as it raised it there; other errors
            become a RingKerasError.
    """
    answer: dict[str, Any] = {}
    problem = None
    if process_set.rank() == 0:
        try:
            answer = {"found": look()}
        except Exception as error:  # File systems have many, and so has Kafka.
            problem = error
            answer = _failure(error)
    answer = broadcast_object(
        answer, process_set.ranks[0], name=name, process_set=process_set
    )
    if "found" not in answer:
        kind = _KINDS[answer["kind"]]
        raise kind(f"ring_keras.{name}: {answer['said']}") from problem
    found: str = answer["found"]
    return found


def _failure(error: Exception) -> dict[str, Any]:
    for number, kind in enumerate(_KINDS):
        if isinstance(error, kind):
            return {"kind": number, "said": str(error)}
    return {"kind": 0, "said": f"{type(error).__name__}: {error}"}
