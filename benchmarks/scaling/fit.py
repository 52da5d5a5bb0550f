"""The machine's parameters, fitted to measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.costs import Cost, cost_of

__all__ = ["Machine", "Point", "fit", "nominal_wire_s"]

# The link decides a large allreduce; it does not decide one that takes much longer
# than the link needs for its bytes.
_LARGE = 1 << 20
_LINK_IDLES = 0.5


@dataclass(frozen=True)
class Point:
    """One measured allreduce.

    Attributes:
        algorithm: One of `names(hosts, per_host)`.
        hosts: Namespaces, or machines.
        per_host: Ranks on each.
        cores: That all ranks together have.
        link_bytes_per_s: Of each host's link, nominal; 0 where there is no limit.
        nbytes: Of the data.
        time_s: Median, on the slowest rank.
    """

    algorithm: str
    hosts: int
    per_host: int
    cores: int
    link_bytes_per_s: float
    nbytes: int
    time_s: float

    @property
    def ranks(self) -> int:
        """On all hosts."""
        return self.hosts * self.per_host

    @property
    def ranks_per_core(self) -> float:
        """At least 1."""
        return max(1.0, self.ranks / self.cores)

    @property
    def cost(self) -> Cost:
        """What its algorithm does."""
        return cost_of(self.algorithm, self.hosts, self.per_host, self.nbytes)


@dataclass(frozen=True)
class Machine:
    """What one unit of each kind of work takes.

    Attributes:
        trip_s: alpha: from a message's send to the receiver's next step.
        message_s: A core's work for sending one message and receiving one.
        message_turn_s: What a message waits besides for each further rank on the
            receiver's core.
        wire_excess: beta times the nominal rate: 1 / the part of the link's rate
            that carries data.
        copied_s: gamma: a core's work for a byte that goes through TCP.
        sync_s: One wait for the ranks of the host.
        sync_turn_s: What it takes besides for each further rank on the core.
        near_s: A core's work for a byte of shared memory, in cache.
        far_s: The same out of cache.
    """

    trip_s: float
    message_s: float
    message_turn_s: float
    wire_excess: float
    copied_s: float
    sync_s: float
    sync_turn_s: float
    near_s: float
    far_s: float

    def time_s(
        self, cost: Cost, link_bytes_per_s: float, ranks_per_core: float = 1.0
    ) -> float:
        """How long the work takes.

        Args:
            cost: The work.
            link_bytes_per_s: The link's nominal rate; 0 where there is no limit.
            ranks_per_core: How many ranks take turns on a core.
        """
        busy_s = max(
            self.core_s(cost, ranks_per_core), self.wire_s(cost, link_bytes_per_s)
        )
        return self.waiting_s(cost, ranks_per_core) + busy_s

    def waiting_s(self, cost: Cost, ranks_per_core: float = 1.0) -> float:
        """What neither link nor core is busy with: other work can go on meanwhile."""
        sync_s = self.sync_s + (ranks_per_core - 1) * self.sync_turn_s
        return cost.trips * self.trip_s + cost.syncs * sync_s

    def core_s(self, cost: Cost, ranks_per_core: float = 1.0) -> float:
        """What the core is busy with."""
        own_s = (
            cost.messages * self.message_s
            + cost.copied_bytes * self.copied_s
            + cost.near_bytes * self.near_s
            + cost.far_bytes * self.far_s
        )
        turns = (ranks_per_core - 1) * cost.messages
        return ranks_per_core * own_s + turns * self.message_turn_s

    def wire_s(self, cost: Cost, link_bytes_per_s: float) -> float:
        """What the link is busy with."""
        return self.wire_excess * nominal_wire_s(cost, link_bytes_per_s)


def nominal_wire_s(cost: Cost, link_bytes_per_s: float) -> float:
    """How long the link takes if data fill it."""
    return cost.wire_bytes / link_bytes_per_s if link_bytes_per_s else 0.0


def fit(points: Sequence[Point], message_s: float) -> Machine:
    """The machine that explains the measurements best.

    The link's share comes from the runs that the link decides, the rest from those
    that it does not: by least squares of the relative errors, with no parameter
    below zero.

    Args:
        points: The measurements.
        message_s: Measured by itself: between two ranks, each trip has one message,
            so no fit can tell the two apart.

    Raises:
        ValueError: If the measurements leave a parameter open.
    """
    wire_excess = _fit_link(points)
    rows, targets = [], []
    for point in points:
        cost = point.cost
        wire_s = wire_excess * nominal_wire_s(cost, point.link_bytes_per_s)
        if wire_s > _LINK_IDLES * point.time_s:
            continue
        rank_count = point.ranks_per_core
        others = rank_count - 1
        known_s = rank_count * cost.messages * message_s
        features = [
            cost.trips,
            others * cost.messages,
            rank_count * cost.copied_bytes,
            cost.syncs,
            others * cost.syncs,
            rank_count * cost.near_bytes,
            rank_count * cost.far_bytes,
        ]
        rows.append(np.array(features) / point.time_s)
        targets.append(1 - known_s / point.time_s)
    if np.linalg.matrix_rank(np.array(rows)) < 7:
        raise ValueError(
            "The measurements must tell 7 parameters apart: on one host and across "
            "hosts, with cores enough and with too few, small and large. "
            f"Received: {len(rows)} measurements that the link does not decide"
        )
    trip_s, message_turn_s, copied_s, sync_s, sync_turn_s, near_s, far_s = (
        _nonnegative_least_squares(np.array(rows), np.array(targets))
    )
    return Machine(
        trip_s=trip_s,
        message_s=message_s,
        message_turn_s=message_turn_s,
        wire_excess=wire_excess,
        copied_s=copied_s,
        sync_s=sync_s,
        sync_turn_s=sync_turn_s,
        near_s=near_s,
        far_s=far_s,
    )


def _fit_link(points: Sequence[Point]) -> float:
    ratios = [
        point.time_s / nominal_wire_s(point.cost, point.link_bytes_per_s)
        for point in points
        if point.nbytes >= _LARGE and point.link_bytes_per_s
    ]
    if not ratios:
        raise ValueError(
            f"The link's share needs measurements of {_LARGE} bytes or more through "
            "a limited link. Received: none"
        )
    return statistics.median(ratios)


def _nonnegative_least_squares(
    rows: NDArray[np.float64], targets: NDArray[np.float64]
) -> list[float]:
    """Least squares; the parameter that is most below zero is left out, in turn."""
    scale = np.abs(rows).max(axis=0)
    used = list(range(rows.shape[1]))
    while True:
        solution, *_ = np.linalg.lstsq(rows[:, used] / scale[used], targets, rcond=None)
        if solution.min() >= 0:
            break
        used.pop(int(solution.argmin()))
    values = np.zeros(rows.shape[1])
    values[used] = solution / scale[used]
    return [float(value) for value in values]
