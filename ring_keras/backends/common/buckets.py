"""Which gradients travel together."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ring_keras.job.job import current_job

__all__ = ["buckets_of", "plan_of"]

_Tensor = TypeVar("_Tensor")

# As on the back end TensorFlow; the first one is small, so that something travels soon.
_BYTES = 16 << 20
_FIRST_BYTES = 1 << 20


def buckets_of(
    parameters: Sequence[_Tensor],
    groups: Iterable[Sequence[_Tensor]] = (),
    limit: int | None = None,
    nbytes_of: Callable[[Any], int] = operator.attrgetter("nbytes"),
) -> list[list[_Tensor]]:
    """Each of `groups`, and the others by size, as backward comes to their gradients.

    Args:
        parameters: All of them, in the order in which the model uses them.
        groups: Those that travel together, whatever their size.
        limit: The size of a bucket, in bytes. None: what the job has.
        nbytes_of: How large one of them is.
    """
    buckets = [list(group) for group in groups]
    grouped = {id(parameter) for bucket in buckets for parameter in bucket}
    job = current_job()
    if limit is None:
        limit = job.config.bucket_size_bytes
    if limit is None:
        limit = job.tuned_bucket_bytes or _BYTES
    room = min(limit, _FIRST_BYTES)
    bucket: list[_Tensor] = []
    for parameter in reversed(parameters):
        if id(parameter) in grouped:
            continue
        nbytes = nbytes_of(parameter)
        if bucket and nbytes > room:
            buckets.append(bucket)
            bucket, room = [], limit
        bucket.append(parameter)
        room -= nbytes
    if bucket:
        buckets.append(bucket)
    return buckets


def plan_of(lines: Iterable[str]) -> int:
    """A number that ranks have in common if these are the same lines; never 0."""
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1
