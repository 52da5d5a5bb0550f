"""Gradients that a rank adds up until an update, where training begins."""

from collections.abc import Collection
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.weight_digests import all_digests
from ring_keras.values.objects import allgather_object

__all__ = ["keep_own_accumulated"]


def keep_own_accumulated(
    model: keras.Model,
    root: int,
    name: str,
    process_set: ProcessSet,
    *,
    common: Collection[Any] = (),
) -> None:
    """Each rank goes on with the gradients that it has added up itself; a collective.

    That is where all ranks have taken the same steps. Otherwise they have restored what
    one rank has saved in the middle of an accumulation, and nobody has the others'
    part: then all begin to add up anew, and a warning says so.

    Args:
        model: One whose ranks are about to take the variables of one of them.
        root: That one's place among the ranks.
        name: Of the collective.
        process_set: The ranks that train together.
        common: What accumulates gradients that were reduced before: the ranks take it
            with the other variables.
    """
    others = set(map(id, common))
    accumulators = [
        variable
        for variable in internals.accumulators(internals.optimizers_of(model))
        if id(variable) not in others
    ]
    accumulating = [
        (optimizer, int(passes))
        for optimizer in internals.innermost_optimizers(model)
        if (passes := getattr(optimizer, "gradient_accumulation_steps", None))
        and others.isdisjoint(map(id, internals.accumulators([optimizer])))
    ]
    own = [[internals.steps_done(one), passes] for one, passes in accumulating]
    everyones = allgather_object(own, name=name, process_set=process_set)
    roots = everyones[root]
    are_new = any(theirs != roots for theirs in everyones)
    begun = [passes for steps, passes in roots if steps % passes]
    if not are_new and begun:
        are_new = _are_of_one_rank(accumulators, f"{name}/values", process_set)
    if not are_new:
        return
    internals.clear_accumulators(accumulators)
    if begun and process_set.rank() == 0:
        logging.warning(
            "ring_keras: [RK332] "
            "training continues in the middle of an accumulation of %d steps, from one "
            "rank's file. The gradients of the steps before are lost: the next update "
            "has only those of the remaining steps. Save after a multiple of %d steps.",
            begun[0],
            begun[0],
        )


def _are_of_one_rank(
    accumulators: list[Any], name: str, process_set: ProcessSet
) -> bool:
    """Whether all have the same, as from one file; each adds up its own examples'."""
    digests = all_digests(accumulators, name, process_set)
    return bool((digests == digests[0]).all())
