"""Whether the parts of a divided state that ranks have belong together."""

from collections.abc import Iterable

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.shards import shard_of
from ring_keras.values.objects import allgather_object

__all__ = [
    "parts_of_different_states",
    "require_parts_of_one_state",
    "sharded_steps",
]


def sharded_steps(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[int]:
    """How many steps those have taken of these whose state is divided."""
    return [
        internals.steps_done(optimizer)
        for optimizer in internals.innermost(optimizers)
        if optimizer.built and any(map(shard_of, optimizer.variables))
    ]


def require_parts_of_one_state(
    own: list[int], name: str, process_set: ProcessSet
) -> None:
    """Raises where the ranks have taken different numbers of steps; collective.

    One that has loaded a file alone has its part of that, and the others have theirs of
    something else.

    Args:
        own: See `sharded_steps`.
        name: Of what the ranks are about to do.
        process_set: The ranks that train together.

    Raises:
        RankMismatchError: On every rank.
    """
    everyones = allgather_object(own, name=f"optimizer/{name}", process_set=process_set)
    for other, theirs in zip(process_set.ranks, everyones, strict=True):
        if theirs != everyones[0]:
            raise parts_of_different_states(
                f"rank {process_set.ranks[0]} has taken {everyones[0][0]} steps, "
                f"rank {other} {theirs[0]}"
            )


def parts_of_different_states(how: str) -> RankMismatchError:
    """The error of ranks whose parts do not belong together."""
    return RankMismatchError(
        "[RK348] "
        "the ranks have parts of different states of an optimizer with "
        f"shard_state=True: {how}. Load the same file on every rank, before the first "
        "step, and save on all ranks after the same step."
    )
