"""Static plans: which gradients travel together, and in which order.

The gradients of a training step are known when the step is traced, so the plan
is made once and replayed by every step. It is a pure function of the
gradients' dtypes and shapes: ranks that train the same model make the same
plan without asking each other.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ring_keras.job.job import current_job

__all__ = [
    "DEFAULT_BYTES",
    "GPU_DEFAULT_BYTES",
    "NO_GRADIENT",
    "Bucket",
    "BucketPlan",
    "GradientSpec",
    "bucket_name",
    "current_bytes",
    "plan_buckets",
]

DEFAULT_BYTES = 16 << 20
# NCCL needs more at once to reach its bandwidth: by a model of 8 GPUs joined by
# NVSwitch, 79 % of it at 25 MiB and 91 % at 64 MiB. Not measured.
GPU_DEFAULT_BYTES = 32 << 20

# The first bucket is small: the wire has work soon after backward starts.
FIRST_BUCKET_BYTES = 1 << 20
NO_GRADIENT = "no gradient"


def current_bytes() -> int:
    """A bucket's size where the user's code names none.

    It is what the environment sets, or else what was measured, or else the default.
    """
    job = current_job()
    default = GPU_DEFAULT_BYTES if job.on_gpu else DEFAULT_BYTES
    return job.config.bucket_size_bytes or job.tuned_bucket_bytes or default


@dataclass(frozen=True)
class GradientSpec:
    """What a plan needs to know of one gradient.

    Attributes:
        name: Its variable, for messages. Names may differ between ranks.
        dtype: Name of its dtype; None if the variable has no gradient.
        itemsize_bytes: Bytes per element.
        shape: Its static shape; None if it is sparse, or none at all, and
            goes into no bucket.
        compiled: Whether XLA compiles the step, where sparse ones travel otherwise.
    """

    name: str
    dtype: str | None
    itemsize_bytes: int
    shape: tuple[int, ...] | None
    compiled: bool = False

    @property
    def nbytes(self) -> int:
        """Its size; 0 if that is known only when the step runs."""
        if self.shape is None:
            return 0
        return math.prod(self.shape) * self.itemsize_bytes

    def describe(self) -> str:
        """Dtype and shape, the part on which the ranks must agree."""
        if self.dtype is None:
            return NO_GRADIENT
        if self.shape is None:
            return f"{self.dtype} sparse{' under XLA' if self.compiled else ''}"
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Bucket:
    """Gradients reduced by one collective.

    Attributes:
        indices: Their positions in the list of gradients.
        dtype: Their common dtype.
        nbytes: Their size together.
        limit_bytes: What the bucket may hold; None for a group's, which is as it is.
    """

    indices: tuple[int, ...]
    dtype: str
    nbytes: int
    limit_bytes: int | None = None

    @property
    def fill(self) -> float | None:
        """From 0 to 1: how much of what it may hold it holds."""
        if self.limit_bytes is None:
            return None
        return min(self.nbytes / self.limit_bytes, 1.0)


@dataclass(frozen=True)
class BucketPlan:
    """The buckets of a step, in the order in which their starts are issued."""

    specs: tuple[GradientSpec, ...]
    buckets: tuple[Bucket, ...]

    def agreement(self) -> list[str]:
        """One line per gradient, then one per bucket: equal on every rank."""
        lines = [spec.describe() for spec in self.specs]
        lines += [f"bucket {list(bucket.indices)}" for bucket in self.buckets]
        return lines

    def digest(self) -> bytes:
        """32 bytes that stand for `agreement()`."""
        return hashlib.sha256("\n".join(self.agreement()).encode()).digest()


def bucket_name(number: int) -> str:
    """What the collective of a plan's n-th bucket is called."""
    return f"gradients/bucket{number}"


def plan_buckets(
    specs: Sequence[GradientSpec],
    bucket_size_bytes: int,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    groups: Sequence[Sequence[int]] = (),
    order: Sequence[int] | None = None,
) -> BucketPlan:
    """Groups gradients into buckets.

    Buckets fill in the order in which backpropagation makes the gradients, and are
    issued in the order in which they get full.

    Args:
        specs: The gradients, in the order of their variables.
        bucket_size_bytes: A bucket takes no further gradient that would make
            it larger. A gradient of this size or more has its own.
        first_bucket_bytes: The same for the first bucket.
        groups: Positions of gradients that travel together whatever their
            size; those of one dtype of a group make one bucket. No position is
            in two groups.
        order: The positions of the gradients, that of the first to be ready first.
            Defaults to the reverse, in which backpropagation mostly makes them.

    Returns:
        The plan. Every dense gradient is in exactly one bucket; sparse ones
        are in none.
    """
    if bucket_size_bytes < 1:
        raise ValueError(
            "`bucket_size_bytes` must be at least 1. "
            f"Received: bucket_size_bytes={bucket_size_bytes}"
        )
    if order is None:
        order = range(len(specs))[::-1]
    grouped = [bucket for group in groups for bucket in _group_buckets(specs, group)]
    taken = {index for bucket in grouped for index in bucket.indices}
    full: list[Bucket] = []
    open_: dict[str, Bucket] = {}  # By dtype, in the order of their first gradient.
    for index in order:
        spec = specs[index]
        if spec.dtype is None or spec.shape is None or index in taken:
            continue
        bucket = open_.get(spec.dtype)
        limit = (
            bucket_size_bytes if full else min(first_bucket_bytes, bucket_size_bytes)
        )
        if bucket is not None and bucket.nbytes + spec.nbytes > limit:
            full.append(open_.pop(spec.dtype))
            bucket, limit = None, bucket_size_bytes
        if bucket is None:
            bucket = Bucket((), spec.dtype, 0)
        open_[spec.dtype] = Bucket(
            (*bucket.indices, index),
            spec.dtype,
            bucket.nbytes + spec.nbytes,
            limit,
        )
    # A bucket is ready with its last gradient.
    place = {index: number for number, index in enumerate(order)}
    buckets = [*grouped, *full, *open_.values()]
    buckets.sort(key=lambda bucket: max(place[index] for index in bucket.indices))
    return BucketPlan(tuple(specs), tuple(buckets))


def _group_buckets(specs: Sequence[GradientSpec], group: Sequence[int]) -> list[Bucket]:
    by_dtype: dict[str, list[int]] = {}
    for index in sorted(group, reverse=True):
        dtype = specs[index].dtype
        if dtype is not None and specs[index].shape is not None:
            by_dtype.setdefault(dtype, []).append(index)
    return [
        Bucket(tuple(indices), dtype, sum(specs[index].nbytes for index in indices))
        for dtype, indices in by_dtype.items()
    ]
