"""Times on a cluster that is larger than any that was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.scaling.costs import Cost, cost_of, names
from benchmarks.scaling.fit import Machine
from benchmarks.scaling.step import Model, Step, Transfer, simulate

__all__ = [
    "Allreduce",
    "Cluster",
    "best_allreduce",
    "predict_step",
    "predict_tuned_step",
]

# What an allreduce costs, by hosts, ranks on each, and bytes.
Allreduce = Callable[[int, int, int], Cost]

_BUCKET_SIZES = tuple(1 << power for power in range(20, 28))


@dataclass(frozen=True)
class Cluster:
    """Hosts with as many ranks each, every rank with cores of its own.

    Attributes:
        machine: What its cores and its TCP take.
        per_host: Ranks on a host.
        link_bytes_per_s: Nominal, of a host's link.
        staging_bytes_per_s: From an accelerator's memory to the host's, and the
            same back; infinite for a processor.
    """

    machine: Machine
    per_host: int
    link_bytes_per_s: float
    staging_bytes_per_s: float = float("inf")


def best_allreduce(cluster: Cluster, ranks: int, nbytes: int) -> tuple[str, float]:
    """The fastest algorithm for one allreduce by itself, and its seconds.

    Raises:
        ValueError: If the ranks do not fill their hosts.
    """
    if ranks == 1:
        return "none", 0.0
    per_host = min(cluster.per_host, ranks)
    if ranks % per_host:
        raise ValueError(f"{ranks} ranks do not fill hosts with {per_host} ranks each")
    hosts = ranks // per_host
    times = {
        name: cluster.machine.time_s(
            cost_of(name, hosts, per_host, nbytes), cluster.link_bytes_per_s
        )
        for name in names(hosts, per_host)
    }
    name = min(times, key=lambda one: times[one])
    return name, times[name]


def predict_step(
    cluster: Cluster,
    model: Model,
    ranks: int,
    bucket_size_bytes: int,
    cost_of_one: Allreduce | None = None,
) -> Step:
    """A training step; its buckets are copied to the host and back.

    Args:
        cluster: Where.
        model: What is trained.
        ranks: On how many ranks.
        bucket_size_bytes: See `plan_buckets`.
        cost_of_one: By default that of the fastest algorithm.
    """
    if ranks == 1:
        return simulate(model, bucket_size_bytes, lambda nbytes: Transfer(0, 0))
    per_host = min(cluster.per_host, ranks)

    def allreduce(nbytes: int) -> Transfer:
        hosts = ranks // per_host
        if cost_of_one is not None:
            cost = cost_of_one(hosts, per_host, nbytes)
        else:
            name, _ = best_allreduce(cluster, ranks, nbytes)
            cost = cost_of(name, hosts, per_host, nbytes)
        machine = cluster.machine
        busy_s = max(
            machine.core_s(cost), machine.wire_s(cost, cluster.link_bytes_per_s)
        )
        staging_s = 2 * nbytes / cluster.staging_bytes_per_s
        return Transfer(busy_s, machine.waiting_s(cost) + staging_s)

    return simulate(model, bucket_size_bytes, allreduce)


def predict_tuned_step(
    cluster: Cluster, model: Model, ranks: int, cost_of_one: Allreduce | None = None
) -> tuple[int, Step]:
    """The step with the best size of buckets, and that size."""
    steps = {
        size: predict_step(cluster, model, ranks, size, cost_of_one)
        for size in _BUCKET_SIZES
    }
    best = min(steps, key=lambda size: steps[size].step_s)
    return best, steps[best]
