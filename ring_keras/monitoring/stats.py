"""Where the time of this rank's steps has gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ring_keras import _native
from ring_keras.job.job import current_job
from ring_keras.monitoring.links import Link

__all__ = ["CollectiveStats", "Stats", "StepStats", "StepTotals", "stats"]


@dataclass(frozen=True)
class StepStats:
    """One step of training, as this rank saw it.

    It lasts from the end of the last collective of the step before, or from the
    beginning of its epoch, to the end of its own last collective. Always
    `duration_s = input_s + compute_s + wait_s + exposed_s`.

    Examples:
        >>> optimizer = keras.optimizers.SGD(0.1)
        >>> model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(
        ...     *mine, batch_size=8, epochs=2, verbose=0,
        ...     callbacks=[ring.callbacks.MetricAverage()])
        >>> step = ring.stats().steps[-1]
        >>> 0 <= step.exposed_s <= step.duration_s
        True

    Attributes:
        step: Its number, the same on all ranks of the process set.
        process_set: The `process_set_id` of the ranks that train together; 0: all.
        began_at: In seconds since 1970, by the clock of this host.
        duration_s: Its duration.
        input_s: Time in which it waited for the data's iterator.
        compute_s: All other time: forward, backward, update, callbacks.
        wait_s: Time in which it waited because a rank had not arrived.
        exposed_s: Time in which it waited for any other reason, such as moving bytes.
        overlap_s: Time in which bytes moved while it did not wait; a part of
            `compute_s` and `input_s`.
        bytes: Of this rank's tensors, in all its collectives.
        collectives: Number of collectives.
        examples: In this rank's batches; 0 if unknown, as in a loop of one's own whose
            data are not `ring_keras.monitoring.timed`.
        waited_for_s: `wait_s` by the rank that arrived last.
    """

    step: int
    process_set: int
    began_at: float
    duration_s: float
    input_s: float
    compute_s: float
    wait_s: float
    exposed_s: float
    overlap_s: float
    bytes: int
    collectives: int
    examples: float
    waited_for_s: tuple[float, ...]

    @property
    def last_rank(self) -> int | None:
        """For whom it waited most; None: for nobody."""
        longest = max(self.waited_for_s, default=0.0)
        return self.waited_for_s.index(longest) if longest > 0 else None


@dataclass(frozen=True)
class StepTotals:
    """Sums over all steps since `init()`; times in seconds, sizes in bytes.

    Examples:
        >>> totals = ring.stats().totals
        >>> parts = totals.input_s + totals.compute_s + totals.wait_s + totals.exposed_s
        >>> abs(parts - totals.duration_s) < 1e-6
        True

    Attributes:
        steps: Number of steps.
        duration_s: The sum of the next four, as in `StepStats`.
        input_s: Waiting for the data's iterator.
        compute_s: All other time: forward, backward, update, callbacks.
        wait_s: Waiting for ranks that had not arrived.
        exposed_s: Waiting while bytes moved.
        overlap_s: Bytes moved, and nothing waited for them.
        bytes: Of this rank's tensors, in all collectives.
        collectives: Number of collectives.
        examples: In this rank's batches.
        waited_for_s: `wait_s` by the rank that arrived last.
    """

    steps: int
    duration_s: float
    input_s: float
    compute_s: float
    wait_s: float
    exposed_s: float
    overlap_s: float
    bytes: int
    collectives: int
    examples: float
    waited_for_s: tuple[float, ...]


@dataclass(frozen=True)
class CollectiveStats:
    """All collectives of one kind, algorithm and size that ended well.

    Examples:
        >>> total = ring.allreduce(tf.ones(1000), op=ring.Sum)
        >>> used = {c.algorithm for c in ring.stats().collectives}
        >>> "shared_flat" in used
        True

    Attributes:
        kind: Such as `allreduce`.
        algorithm: How it was done, such as `shared_flat`.
        size_class_bytes: Each had at least so many bytes, and less than twice as many.
        count: Number of collectives.
        bytes: Of this rank's tensors, in all.
        wait_s: Between the arrival of this rank and that of the last one, in all.
        transfer_s: Between the arrival of the last rank and the last byte, in all.
            Collectives of up to 512 bytes in host memory are not timed.
        best_bus_bandwidth: Bytes per second that each link carried, in the fastest.
        mean_bus_bandwidth: The same over all of them.
    """

    kind: str
    algorithm: str
    size_class_bytes: int
    count: int
    bytes: int
    wait_s: float
    transfer_s: float
    best_bus_bandwidth: float
    mean_bus_bandwidth: float


@dataclass(frozen=True)
class Stats:
    """What this rank's engine has measured since `init()`.

    Examples:
        >>> ring.stats(most_steps=10).size
        2

    Attributes:
        rank: This rank.
        size: How many there are.
        host: This rank's host.
        steps: The last 1,024 complete steps, oldest first.
        totals: Of all steps.
        collectives: By kind, algorithm and size; also those outside of steps.
        links: What this rank has sent to each one that it reaches by a network; what
            it has received is in its senders' stats.
    """

    rank: int
    size: int
    host: str
    steps: tuple[StepStats, ...]
    totals: StepTotals
    collectives: tuple[CollectiveStats, ...]
    links: tuple[Link, ...]


def stats(most_steps: int = 1024) -> Stats:
    """Says how this rank's steps have spent their time.

    The times are always measured, at very low cost; this call copies the figures. A
    `fit` with a callback of `ring_keras.callbacks` is covered completely. In a loop of
    your own, the time between two steps, such as an evaluation, counts as computing of
    the second one. Waiting for data counts as computing, too, unless you iterate over
    `ring_keras.monitoring.timed(dataset)`.

    Examples:
        >>> stats = ring.stats()
        >>> stats.rank, stats.size
        (0, 2)
        >>> stats.totals.wait_s <= stats.totals.duration_s
        True

    Args:
        most_steps: How many of the last steps to copy; at most 1,024 are kept.

    Returns:
        Times in seconds, sizes in bytes.

    Raises:
        NotInitializedError: If `init()` has not run.
    """
    job = current_job()
    seen = _native.stats(most_steps)
    totals: dict[str, Any] = seen["totals"]
    totals["steps"] = totals.pop("step")
    del totals["began_at"], totals["process_set"]
    return Stats(
        rank=job.rank,
        size=job.size,
        host=job.host,
        steps=tuple(StepStats(**step) for step in seen["steps"]),
        totals=StepTotals(**totals),
        collectives=tuple(CollectiveStats(**one) for one in seen["collectives"]),
        links=tuple(
            Link(job.rank, receiver, nbytes, busy_s)
            for receiver, nbytes, busy_s in _native.links()
        ),
    )
