"""The ranks' rows over time, as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.rows import Row, Update, waited_for_by_rank

__all__ = ["History"]

_Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class History:
    """Seconds a step, of shape [updates, ranks]; NaN where a rank was not there.

    Attributes:
        updates: Oldest first.
        ranks: All that ever were there, in order.
        hosts: Their hosts, the last of each.
        steps: The last step of each update.
        duration: Of a step.
        input: Blocked in the data's iterator.
        compute: The rest.
        wait: Stood still for the last rank.
        exposed: Stood still while bytes moved.
        waited_for: How long the others waited for the rank, on average over them.
    """

    updates: tuple[Update, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    steps: tuple[int, ...]
    duration: _Array
    input: _Array
    compute: _Array
    wait: _Array
    exposed: _Array
    waited_for: _Array

    @classmethod
    def of(cls, updates: Iterable[Update]) -> History:
        """From updates with at least one step, oldest first."""
        updates = tuple(updates)
        hosts = {row.rank: row.host for update in updates for row in update.rows}
        ranks = tuple(sorted(hosts))

        def per_step(name: str) -> _Array:
            return _table(updates, ranks, lambda row: getattr(row, name))

        return cls(
            updates=updates,
            ranks=ranks,
            hosts=tuple(hosts[rank] for rank in ranks),
            steps=tuple(update.step for update in updates),
            duration=per_step("duration_s"),
            input=per_step("input_s"),
            compute=per_step("compute_s"),
            wait=per_step("wait_s"),
            exposed=per_step("exposed_s"),
            waited_for=_waited_for(updates, ranks),
        )


def _table(
    updates: Sequence[Update], ranks: Sequence[int], value: Callable[[Row], float]
) -> _Array:
    table = np.full((len(updates), len(ranks)), np.nan)
    column = {rank: index for index, rank in enumerate(ranks)}
    for line, update in enumerate(updates):
        for row in update.rows:
            table[line, column[row.rank]] = value(row) / max(row.steps, 1)
    return table


def _waited_for(updates: Sequence[Update], ranks: Sequence[int]) -> _Array:
    table = np.full((len(updates), len(ranks)), np.nan)
    for line, update in enumerate(updates):
        waited = waited_for_by_rank(update.rows)
        for index, rank in enumerate(ranks):
            if rank in waited:
                table[line, index] = waited[rank] / max(update.steps, 1)
    return table
