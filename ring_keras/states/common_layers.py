"""What layers have beside their weights, as training on several ranks needs it.

Some of it must be the same on all ranks, as vocabularies, and some must not, as the
seeds of random generators.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import allgather_object

__all__ = ["agree_on_layers", "described_layers", "require_same_layers"]

# A layer's name, what it has, and a digest of that.
_Described = list[list[Any]]


def agree_on_layers(
    model: keras.Model,
    is_local: Callable[[Any], bool],
    name: str,
    process_set: ProcessSet,
    *,
    who: str = "fit()",
    are_new: bool = False,
) -> bool:
    """Compares the ranks' layers, and has their generators draw apart; a collective.

    Args:
        model: One that is built, with its variables as on all other ranks.
        is_local: Whether each rank has its own value of a weight.
        name: Of the collective.
        process_set: The ranks that train together; all call this.
        who: For messages: what the ranks are about to do.
        are_new: Whether a layer of this rank has got other constants.

    Returns:
        Whether one of any rank has.

    Raises:
        RankMismatchError: On every rank, if a vocabulary, or the like, differs.
    """
    seeds = internals.seed_states(model)
    everyones = allgather_object(
        {
            "layers": described_layers(model, is_local),
            "seeds": [int(seed.numpy()[0]) for seed in seeds],
            "are_new": are_new,
        },
        name=name,
        process_set=process_set,
    )
    require_same_layers([theirs["layers"] for theirs in everyones], who, process_set)
    table = [theirs["seeds"] for theirs in everyones]
    if all(len(row) == len(seeds) for row in table):
        for seed, column in zip(seeds, zip(*table, strict=True), strict=True):
            own = _apart(column)[process_set.rank()]
            if own != column[process_set.rank()]:
                seed.assign([own, seed.numpy()[1]])
    return any(theirs["are_new"] for theirs in everyones)


def described_layers(
    model: keras.Model, is_local: Callable[[Any], bool] = lambda variable: False
) -> _Described:
    """What all ranks must have the same of, to be compared."""
    return [
        [name, what, digest]
        for name, what, digest, weights in internals.fixed_states(model)
        if not (weights and all(map(is_local, weights)))
    ]


def require_same_layers(
    everyones: Sequence[_Described], who: str, process_set: ProcessSet
) -> None:
    """Raises if the ranks' layers hold different things.

    Args:
        everyones: What `described_layers` returned on each rank.
        who: For the message, such as "fit()".
        process_set: The ranks.

    Raises:
        RankMismatchError: On every rank.
    """
    first = everyones[0]
    for rank, theirs in zip(process_set.ranks, everyones, strict=True):
        # Keras numbers names, so they need not be the same.
        if len(theirs) != len(first) or any(
            own[1] != other[1] for own, other in zip(first, theirs, strict=True)
        ):
            held = [
                ", ".join(f"{what} of '{name}'" for name, what, _ in one) or "none"
                for one in (first, theirs)
            ]
            raise RankMismatchError(
                "[RK331] "
                f"{who}: the ranks' models have other layers with vocabularies, "
                f"boundaries or constants: rank {process_set.ranks[0]} has {held[0]}, "
                f"rank {rank} has {held[1]}. Build the same model on every rank."
            )
        for own, other in zip(first, theirs, strict=True):
            if own[2] != other[2]:
                raise RankMismatchError(
                    "[RK330] "
                    f"{who}: layer '{own[0]}' does not have the same {own[1]} on rank "
                    f"{process_set.ranks[0]} and on rank {rank}. Call adapt() on all "
                    "of the data, on every rank, before ring_keras.data.shard(). Or "
                    "call it on one rank, and send the result to the others by "
                    "ring_keras.broadcast_object()."
                )


def _apart(seeds: Sequence[int]) -> list[int]:
    """The ranks' seeds of one generator, of which those that repeat are others now.

    The same in each run of a job, so that it can be repeated. The first rank keeps
    its own, as one process does.
    """
    taken = set(seeds)
    result: list[int] = []
    for place, seed in enumerate(seeds):
        number = place
        own = seed
        if seed in seeds[:place]:
            while own in taken:
                digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
                own = int.from_bytes(digest[:4], "little") % (2**31 - 1)
                number += len(seeds)
            taken.add(own)
        result.append(own)
    return result
