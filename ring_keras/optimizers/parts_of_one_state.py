"""Whether the parts of a divided state that ranks have belong together."""

import weakref
import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.shards import shard_of
from ring_keras.values.objects import allgather_object

__all__ = [
    "content_of",
    "first_row",
    "is_divided",
    "loaded_content",
    "note_loaded",
    "parts_of_different_states",
    "require_parts_of_one_state",
]

# By optimizer: `content_of` the whole state of which it has loaded its part last.
_loaded: "weakref.WeakKeyDictionary[keras.optimizers.Optimizer, int]" = (
    weakref.WeakKeyDictionary()
)


def is_divided(optimizers: Iterable[keras.optimizers.Optimizer]) -> bool:
    """Whether one of these, or in them, has a part of a state."""
    return bool(_divided(optimizers))


def _divided(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[keras.optimizers.Optimizer]:
    return [
        optimizer
        for optimizer in internals.innermost(optimizers)
        if optimizer.built and any(map(shard_of, optimizer.variables))
    ]


def first_row(value: Any) -> Any:
    """A copy of what `content_of` looks at, of an array that may be in a file."""
    return np.array(value[:1] if np.ndim(value) else value)


def content_of(variables: Iterable[Any], rows: Iterable[Any]) -> int:
    """A number by which whole states that a rank loads are told apart.

    Args:
        variables: Those of an optimizer. Each rank may have other values of those that
            it has whole, such as of layers of its own: they do not count.
        rows: The `first_row` of the values of each in the whole state.
    """
    content = 1
    for variable, row in zip(variables, rows, strict=True):
        if shard_of(variable):
            content = zlib.crc32(row.tobytes(), content)
    return content


def loaded_content(optimizer: keras.optimizers.Optimizer) -> int:
    """What `note_loaded` said of it last; 0 if nothing."""
    return _loaded.get(optimizer, 0)


def note_loaded(optimizers: Iterable[keras.optimizers.Optimizer], content: int) -> None:
    """These, and those in them, have their parts of a state that this rank has loaded.

    Args:
        optimizers: Of this rank.
        content: `content_of` that state; 0 of one that all ranks have from each other.
    """
    for optimizer in internals.with_inner(optimizers):
        _loaded[optimizer] = content


def require_parts_of_one_state(
    optimizers: Iterable[keras.optimizers.Optimizer],
    name: str,
    process_set: ProcessSet,
) -> None:
    """Raises where the ranks have parts of different states; collective.

    One that has loaded a file alone has its part of that, and the others have theirs of
    something else.

    Args:
        optimizers: Some with a divided state, or around one; the same on all ranks.
        name: Of what the ranks are about to do.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    own = [
        {
            "steps": int(internals.steps_done(one)),
            "loaded": loaded_content(one),
            "variables": len(one.variables),
        }
        for one in _divided(optimizers)
    ]
    everyones = allgather_object(own, name=f"optimizer/{name}", process_set=process_set)
    first = process_set.ranks[0]
    for other, theirs in zip(process_set.ranks, everyones, strict=True):
        for one, its in zip(everyones[0], theirs, strict=True):
            if its["steps"] != one["steps"]:
                raise parts_of_different_states(
                    f"rank {first} has taken {one['steps']} steps, "
                    f"rank {other} {its['steps']}"
                )
            if its["loaded"] != one["loaded"]:
                raise parts_of_different_states(
                    f"each has taken {one['steps']} steps, {_loaded_said(first, one)}, "
                    f"and {_loaded_said(other, its)}"
                )
            if its["variables"] != one["variables"]:
                raise parts_of_different_states(
                    f"it has {one['variables']} variables on rank {first}, "
                    f"{its['variables']} on rank {other}"
                )


def _loaded_said(rank: int, one: dict[str, int]) -> str:
    what = f"one with the checksum {one['loaded']:08x}" if one["loaded"] else "none"
    return f"rank {rank} has loaded {what}"


def parts_of_different_states(how: str) -> RankMismatchError:
    """The error of ranks whose parts do not belong together."""
    return RankMismatchError(
        "[RK348] "
        "the ranks have parts of different states of an optimizer with "
        f"shard_state=True: {how}. Load the same file on every rank, before the first "
        "step, and save on all ranks after the same step."
    )
