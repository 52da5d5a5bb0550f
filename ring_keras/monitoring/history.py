"""The ranks' rows over time, as arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ring_keras.monitoring.links import Link, slow_links
from ring_keras.monitoring.rows import Update, waited_for_by_rank

__all__ = ["History", "Table"]

_Array = NDArray[np.float64]

# The columns of a table: sums over the steps of a row.
_SUMS = (
    "steps",
    "duration_s",
    "input_s",
    "compute_s",
    "wait_s",
    "exposed_s",
    "examples",
)
_COLUMNS = {name: index for index, name in enumerate((*_SUMS, "waited_for_s"))}


@dataclasses.dataclass(frozen=True)
class Table:
    """An update as an array, which takes a twentieth of the memory.

    Attributes:
        step: The number of its last step.
        time: Unix time at its end, in seconds.
        steps: How many it covers.
        ranks: Of its lines.
        hosts: The same.
        sums: Of shape [ranks, columns]; the last one is for how many seconds the others
            waited for the rank, on average over them.
        links: What was sent over TCP.
    """

    step: int
    time: float
    steps: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    sums: _Array
    links: tuple[Link, ...]

    @classmethod
    def of(cls, update: Update) -> Table:
        """The same update."""
        waited = waited_for_by_rank(update.rows)
        sums = [
            (*(getattr(row, name) for name in _SUMS), waited[row.rank])
            for row in update.rows
        ]
        return cls(
            step=update.step,
            time=update.time,
            steps=update.steps,
            ranks=tuple(row.rank for row in update.rows),
            hosts=tuple(row.host for row in update.rows),
            sums=np.array(sums, float).reshape(-1, len(_COLUMNS)),
            links=update.links,
        )

    @property
    def begins_after(self) -> int:
        """The step before its first one."""
        return max(self.step - self.steps, 0)

    @functools.cached_property
    def slow_links(self) -> frozenset[tuple[int, int]]:
        """Senders and receivers."""
        return frozenset(
            (link.sender, link.receiver) for link, _ in slow_links(self.links)
        )


@dataclasses.dataclass(frozen=True)
class History:
    """Arrays of shape [updates, ranks]; NaN where a rank was not there.

    Attributes:
        ranks: All that ever were there, in order.
        hosts: Their hosts, the last of each.
        begins_after: The step before the first one.
        steps: The last step of each update.
        times: Unix times at their ends.
        tables: What it is of; none after `thinned`.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    begins_after: int
    steps: tuple[int, ...]
    times: tuple[float, ...]
    tables: tuple[Table, ...]
    _sums: _Array

    @classmethod
    def of(cls, tables: Iterable[Table]) -> History:
        """From updates with at least one step, oldest first."""
        tables = tuple(tables)
        hosts: dict[int, str] = {}
        for table in tables:
            hosts.update(zip(table.ranks, table.hosts, strict=True))
        ranks = tuple(sorted(hosts))
        sums = np.full((len(tables), len(ranks), len(_COLUMNS)), np.nan)
        for line, table in enumerate(tables):
            sums[line, np.searchsorted(ranks, table.ranks)] = table.sums
        return cls(
            ranks=ranks,
            hosts=tuple(hosts[rank] for rank in ranks),
            begins_after=tables[0].begins_after if tables else 0,
            steps=tuple(table.step for table in tables),
            times=tuple(table.time for table in tables),
            tables=tables,
            _sums=sums,
        )

    def thinned(self, most: int) -> History:
        """At most so many updates, each of as many neighbours together."""
        count = len(self.steps)
        if count <= most:
            return self
        ends = np.linspace(0, count, most + 1).round().astype(int)
        sums = np.add.reduceat(np.nan_to_num(self._sums), ends[:-1])
        was_there = np.add.reduceat(~np.isnan(self._sums), ends[:-1])
        sums[was_there == 0] = np.nan
        return dataclasses.replace(
            self,
            steps=tuple(self.steps[end - 1] for end in ends[1:]),
            times=tuple(self.times[end - 1] for end in ends[1:]),
            tables=(),
            _sums=sums,
        )

    @property
    def duration(self) -> _Array:
        """Of a step, in seconds; so are the next ones."""
        return self._a_step("duration_s")

    @property
    def input(self) -> _Array:
        """Blocked in the data's iterator."""
        return self._a_step("input_s")

    @property
    def compute(self) -> _Array:
        """The rest."""
        return self._a_step("compute_s")

    @property
    def wait(self) -> _Array:
        """Stood still for the last rank."""
        return self._a_step("wait_s")

    @property
    def exposed(self) -> _Array:
        """Stood still for any other reason: mostly while bytes moved."""
        return self._a_step("exposed_s")

    @property
    def waited_for(self) -> _Array:
        """How long the others waited for the rank, on average over them."""
        return self._a_step("waited_for_s")

    @property
    def examples_per_s(self) -> _Array:
        """While the rank trained; 0 where unknown."""
        seconds = np.maximum(self._column("duration_s"), 1e-9)
        return self._column("examples") / seconds

    def _a_step(self, name: str) -> _Array:
        return self._column(name) / np.maximum(self._column("steps"), 1)

    def _column(self, name: str) -> _Array:
        values: _Array = self._sums[:, :, _COLUMNS[name]]
        return values
