"""Variables of one rank for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.states.first_ranks import take_first_ranks

__all__ = ["broadcast_variables"]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    *,
    name: str = "broadcast_variables",
    process_set: ProcessSet | None = None,
) -> None:
    """Assigns the root's values on all ranks, with Keras's back ends torch and JAX.

    Args:
        variables: Of Keras, such as `model.weights` or `optimizer.variables`: of the
            same shapes, in the same order on every rank.
        root_rank: The rank of the whole job whose values all take.
        name: Of the collectives, the same on every rank.
        process_set: Ranks taking part. Defaults to all.

    Raises:
        RankMismatchError: On every rank, if shapes or the root differ.
        PeerLostError: If a rank has died or left.
    """
    process_set = process_set or global_process_set
    if has_peers(process_set):
        root = process_set.position_of(root_rank)
        take_first_ranks(list(variables), name, process_set, root=root)
