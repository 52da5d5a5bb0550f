"""The flight recorder: the last collectives of this rank."""

from __future__ import annotations

from dataclasses import dataclass

from ring_keras import _native
from ring_keras.job.job import current_job

__all__ = ["Collective", "dump", "recent_collectives"]


@dataclass(frozen=True)
class Collective:
    """One collective of this rank's. Times are in seconds since 1970.

    Examples:
        >>> total = ring.allreduce(tf.ones(1000), op=ring.Sum, name="ones")
        >>> last = ring.monitoring.recent_collectives()[-1]
        >>> last.arrived_at <= last.matched_at <= last.done_at
        True

    Attributes:
        number: In the order in which they ended, from 1; 0 while it is pending.
        name: Its name; of a long one the last 79 bytes.
        kind: Such as `allreduce`.
        algorithm: How it was done, such as `shared_flat`; `none` if it never began.
        step: The step of its process set that it belongs to; 0 for none.
        process_set: The `process_set_id` of the ranks that take part; 0: all.
        bytes: Of this rank's tensors.
        ranks: How many take part.
        submitted_at: When the program handed it over.
        arrived_at: When this rank's peers could see that it was there.
        matched_at: When the last rank was there.
        last_rank: Which that was.
        first_byte_at: When this rank began to exchange data: on a GPU, when they were
            handed to the device.
        last_byte_at: When it had all of them.
        done_at: When the program was told.
        outcome: `ok`, `pending`, or how it failed.
    """

    number: int
    name: str
    kind: str
    algorithm: str
    step: int
    process_set: int
    bytes: int
    ranks: int
    submitted_at: float | None
    arrived_at: float | None
    matched_at: float | None
    last_rank: int | None
    first_byte_at: float | None
    last_byte_at: float | None
    done_at: float | None
    outcome: str


def recent_collectives() -> tuple[Collective, ...]:
    """The last 4,096 collectives in the order in which they ended, then those pending.

    Examples:
        >>> total = ring.allreduce(tf.ones(1000), op=ring.Sum, name="ones")
        >>> last = ring.monitoring.recent_collectives()[-1]
        >>> last.kind, last.bytes, last.ranks, last.outcome
        ('allreduce', 4000, 2, 'ok')

    Raises:
        NotInitializedError: If `init()` has not run.
    """
    current_job()
    return tuple(Collective(**record) for record in _native.recent_collectives())


def dump(why: str) -> None:
    """Makes every rank write its last collectives and stacks to `RING_KERAS_TRACE_DIR`.

    The engine does the same by itself when the job stalls. Without that variable,
    nothing is written.

    Examples:
        >>> ring.monitoring.dump("loss is NaN")

    Args:
        why: The reason, which is written, too.

    Raises:
        NotInitializedError: If `init()` has not run.
    """
    current_job()
    _native.dump(why)
