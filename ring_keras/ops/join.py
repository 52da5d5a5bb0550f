"""Join: a rank without data lets the others go on."""

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

from ring_keras import _native
from ring_keras.errors import CollectiveTimeoutError, PeerLostError, RankMismatchError
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.objects import broadcast_object

__all__ = [
    "WhyNeeded",
    "agreed_without_all",
    "join",
    "needed_in_meetings",
    "needed_in_updates",
    "needed_plans",
]

WhyNeeded: TypeAlias = Callable[[int], RankMismatchError]
"""Says why others cannot go on without a rank, which is in join()."""

agreed_without_all: PerJob[defaultdict[int, dict[bytes, int]]] = PerJob(
    functools.partial(defaultdict, dict)
)
"""By process set: plans of gradients on which some ranks have agreed while others were
in join(), their numbers by their digests."""

needed_plans: PerJob[defaultdict[int, dict[int, WhyNeeded]]] = PerJob(
    functools.partial(defaultdict, dict)
)
"""By process set: plans that nobody follows without all ranks, and why. By number."""


def join(*, process_set: ProcessSet | None = None) -> int:
    """Takes part in the other ranks' collectives until all have called it.

    Use it in a loop of your own in which ranks have different numbers of batches:
    call it after the loop, on every rank.

    ```python
    for batch in dataset:
        train_step(batch)
    ring.join()
    ```

    Until the last rank calls it, a rank that has joined contributes zeros to sums,
    does not count in averages, and adds no rows to gathers. It gets none of the
    results, so its variables do not change. Afterwards
    `ring.broadcast_variables(variables, root_rank=last)` gives it those of the
    last rank.

    Some collectives need every rank: `MIN`, `MAX`, `PRODUCT`, a broadcast whose
    root has joined, collectives of tensors on a GPU, and making or removing
    process sets. They fail on all ranks that enter them, with an error that names
    the rank that has joined. These ranks can continue. The steps of an optimizer with
    `shard_state=True` fail in the same way: a rank that has joined would not update its
    part. So do the meetings of one with `sync_every`: it would not take their weights.

    In `fit`, or if steps must count by their examples, use `ring_keras.data.join`
    instead.

    Examples:
        Rank 0 has 2 batches, rank 1 has 4:

        >>> for batch in range(2 + 2 * ring.rank()):
        ...     gradient = ring.allreduce(tf.ones(2), name="gradient")
        >>> ring.join()
        1

    Args:
        process_set: The ranks that wait for each other. Defaults to all.

    Returns:
        The last rank to join, the same on every rank.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If, for `RING_KERAS_COLLECTIVE_TIMEOUT_S` seconds,
            some rank neither joins nor enters a collective.
    """
    process_set = process_set or global_process_set
    communicator_id = process_set.communicator_id()
    plans = needed_plans.of(current_job())[communicator_id]
    reasons = dict.fromkeys(plans.values())
    why = " ".join(str(reason(current_job().rank)) for reason in reasons)
    try:
        last = _native.join(communicator_id, sorted(plans), why)
    except (PeerLostError, CollectiveTimeoutError) as error:
        if plans:
            raise type(error)(f"{why} {error}") from error
        raise
    if process_set.size() > 1:
        _share_agreements(last, process_set)
    return last


def needed_in_updates(rank: int) -> RankMismatchError:
    """Why steps cannot do without this rank, which is in join()."""
    return RankMismatchError(
        "[RK830] "
        f"rank {rank} has run out of data and is in join(), and an "
        "optimizer has shard_state=True: each rank updates a part of the weights for "
        "all. Iterate over ring_keras.data.join(dataset) on every rank, with which "
        "one without data takes part in each step, or leave out shard_state."
    )


def needed_in_meetings(rank: int) -> RankMismatchError:
    """Why ranks that train apart cannot meet without this one, which is in join()."""
    return RankMismatchError(
        "[RK358] "
        f"rank {rank} has run out of data and is in join(), and an optimizer has "
        "sync_every: a rank that is not there where the others meet would go on with "
        "other weights. Iterate over ring_keras.data.join(dataset) on every rank, with "
        "which one without data meets the others."
    )


def _share_agreements(root_rank: int, process_set: ProcessSet) -> None:
    """Tells all ranks what the last one to join has agreed on without them."""
    known = agreed_without_all.of(current_job())[process_set.communicator_id()]
    known.update(
        broadcast_object(
            sorted(known.items()), root_rank, name="join/plans", process_set=process_set
        )
    )
