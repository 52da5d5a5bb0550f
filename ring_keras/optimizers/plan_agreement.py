"""Makes sure that every rank reduces the same gradients in the same buckets."""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.gathering import gather_bytes
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.allgather import allgather_all
from ring_keras.ops.common_order import refuse_crossed, warn_of_other_names
from ring_keras.ops.join import (
    WhyNeeded,
    agreed_without_all,
    needed_in_updates,
    needed_plans,
)
from ring_keras.optimizers.buckets import NO_GRADIENT, BucketPlan, bucket_name
from ring_keras.optimizers.step_scope import reduction_step

__all__ = ["Agreement", "Places", "agree_on_plan", "named_mismatch"]

_ADVICE = (
    "Build the same model, with the same trainable variables and bucket size, on "
    "every rank, and take the same branches in every step."
)
_COUNT_NBYTES: Final = 8
_DIGEST_NBYTES: Final = 32
_RANK_NBYTES: Final = 4
# Where the number of plans is in a row; one byte follows, a rank, and another digest.
_COUNT: Final = slice(_DIGEST_NBYTES, _DIGEST_NBYTES + _COUNT_NBYTES)
_RANK: Final = slice(_COUNT.stop + 1, _COUNT.stop + 1 + _RANK_NBYTES)
_ORDER: Final = "big"
# By process set: on how many plans its ranks have agreed.
_agreed_counts: PerJob[defaultdict[int, int]] = PerJob(lambda: defaultdict(int))
# In place of a name, before the last line of a description.
_BUCKETS = ""


Places: TypeAlias = tuple[int | None, int | None]
"""Of a variable, in the list of its optimizer, and in the last one that the ranks have
broadcast or compared; None where it is in none."""


@dataclass(frozen=True)
class Agreement:
    """On one plan.

    Attributes:
        digest: Of the plan, as each rank would have it by itself.
        number: Of the plan, from 1, the same on every rank: it tells the plan apart
            from others, of the same shapes too, that these ranks have agreed on.
        of_all: Whether all ranks have agreed. If not, they must do without anything
            else that all would have to agree on.
    """

    digest: bytes
    number: int
    of_all: bool


def agree_on_plan(
    plan: BucketPlan,
    process_set: ProcessSet,
    places: Sequence[Places] = (),
    *,
    needs_all: WhyNeeded | None = None,
) -> Agreement:
    """Compares this rank's plan with the others'; collective, and cheap.

    The collective has the name of a plan's first bucket. So a rank that has come to
    a new plan alone meets the others in the one that they replay, and all get an
    error instead of waiting for each other.

    Once some ranks have agreed on a plan while others were in join(), no rank
    asks again: some would not answer. Where the ranks divide the updates, or meet, none
    agree without all.

    Args:
        plan: This rank's.
        process_set: The ranks that reduce gradients together.
        places: Of each gradient's variable: of equal shapes it could be another.
        needs_all: Why no rank may be in join(); None if any may.

    Raises:
        RankMismatchError: On every rank, if two plans differ, or are of other
            variables. Names the first gradient on which they do; but if this is the
            only rank that asks, the collective. Or if some ranks alone would divide the
            updates, or one that is needed is in join().
    """
    job, communicator_id = current_job(), process_set.communicator_id()
    without_all = agreed_without_all.of(job)[communicator_id]
    digest = plan.digest()
    shards_state = needs_all is needed_in_updates
    if digest in without_all and needs_all is None:
        return Agreement(digest, without_all[digest], of_all=False)
    described = _describe(plan, places)
    own = _agreed_counts.of(job)[communicator_id].to_bytes(_COUNT_NBYTES, _ORDER)
    own = digest + own + bytes([shards_state]) + job.rank.to_bytes(_RANK_NBYTES, _ORDER)
    own += hashlib.sha256("\n".join(described).encode()).digest()
    with named_mismatch(plan, process_set), tf.init_scope():
        gathered = _gather_rows(own, process_set)
    if any(not theirs.startswith(digest) for theirs in gathered):
        difference = _difference(described, process_set) or "gradients differ"
        raise RankMismatchError(f"[RK311] {difference}")
    if len({theirs[-_DIGEST_NBYTES:] for theirs in gathered}) > 1:
        _refuse_other_variables(described, process_set)
    if len({theirs[_COUNT.stop] for theirs in gathered}) > 1:
        raise RankMismatchError(
            "[RK349] "
            "the optimizer has shard_state=True on some ranks only: here it is "
            f"shard_state={shards_state}. Give DistributedOptimizer the same arguments "
            "on every rank."
        )
    # A rank that was in join() has missed some.
    number = 1 + max(int.from_bytes(theirs[_COUNT], _ORDER) for theirs in gathered)
    _agreed_counts.of(job)[communicator_id] = number
    # One that is in join() now has no plan.
    of_all = len(gathered) == process_set.size()
    if needs_all is not None:
        there = {int.from_bytes(theirs[_RANK], _ORDER) for theirs in gathered}
        for joined in sorted(set(process_set.ranks) - there):
            raise needs_all(joined)
        needed_plans.of(job)[communicator_id][number] = needs_all
    elif not of_all:
        without_all[digest] = number
    return Agreement(digest, number, of_all)


def _gather_rows(own: bytes, process_set: ProcessSet) -> list[bytes]:
    """Every rank's, in a step: there a plan's first bucket is too."""
    row = np.frombuffer(own, np.uint8)[None]
    if tf.executing_eagerly():
        with tf.device("CPU"), reduction_step(process_set):
            name = bucket_name(0)
            rows = allgather_all(row, name=name, process_set=process_set).numpy()
    else:  # A graph of TensorFlow 1, in which there are no steps.
        rows = _native.allgather(row, bucket_name(0), process_set.communicator_id())
    return [theirs.tobytes() for theirs in rows]


@contextlib.contextmanager
def named_mismatch(plan: BucketPlan, process_set: ProcessSet) -> Iterator[None]:
    """Names the gradient on which the ranks differ, where a collective finds that.

    All ranks get the error of a mismatch, so all can compare their plans then; but
    only where each runs its step in Python. One that replays a traced step cannot.

    Args:
        plan: This rank's, as it is without regard to what others have.
        process_set: The ranks that reduce gradients together.

    Raises:
        RankMismatchError: On every rank.
    """
    try:
        yield
    except RankMismatchError as error:
        if not tf.executing_eagerly() or not _may_be_of_plans(error):
            raise
        difference = _difference(_describe(plan), process_set)
        if difference is None:
            raise
        raise RankMismatchError(f"[RK311] {difference}") from error


def _may_be_of_plans(error: RankMismatchError) -> bool:
    """Not if a rank is in another step, or has an error of its own, and no plan."""
    others = ("step differs across ranks", "cannot take part")
    return not any(text in str(error) for text in others)


def _refuse_other_variables(described: list[str], process_set: ProcessSet) -> None:
    """Raises if the ranks have equal plans, but of other variables; collective.

    Their names may differ, but neither the places nor the order of the names.
    """
    plans, ranks = _of_all(described, process_set)
    for position in range(1, len(plans)):
        for index, lines in enumerate(zip(plans[0], plans[position], strict=True)):
            places = zip(*(line.split("\t")[2:] for line in lines), strict=True)
            if any(own and other and own != other for own, other in places):
                raise RankMismatchError(
                    "[RK311] "
                    f"gradient {index} is of different variables: rank {ranks[0]} has "
                    f"{_show(lines[0])}, rank {ranks[position]} has {_show(lines[1])}. "
                    f"{_ADVICE}"
                )
    # Those without a gradient may be ones that each rank has of its own.
    names = [
        [
            line.split("\t")[0]
            for line in plan[:-1]  # The last one is of the buckets.
            if line.split("\t")[1] != NO_GRADIENT
        ]
        for plan in plans
    ]
    refuse_crossed("gradients", ranks, names)
    if process_set.rank() == 0:
        warn_of_other_names("gradients", ranks, names)


def _difference(described: list[str], process_set: ProcessSet) -> str | None:
    """The first one between all ranks' plans, in words; collective."""
    return _first_difference(*_of_all(described, process_set))


def _of_all(
    described: list[str], process_set: ProcessSet
) -> tuple[list[list[str]], list[int]]:
    """Every rank's plan, and the ranks: those that are in join() have none."""
    text = "\n".join(described).encode()
    gathered = gather_bytes(text, "gradients/plan", process_set.communicator_id())
    plans = [content.decode().split("\n") for _, content in gathered]
    return plans, [rank for rank, _ in gathered]


def _describe(plan: BucketPlan, places: Sequence[Places] = ()) -> list[str]:
    """A line for each gradient, and one for the buckets.

    A variable's name helps the reader; what comes after it must agree, its places
    where both ranks know them.
    """
    names = [spec.name for spec in plan.specs]
    lines = plan.agreement()
    described = [
        "\t".join([name, line, *("" if at is None else str(at) for at in place)])
        for name, line, place in zip(
            names, lines, places or [(None, None)] * len(names), strict=False
        )
    ]
    return [*described, f"{_BUCKETS}\t{lines[len(names) :]}\t\t"]


def _first_difference(plans: list[list[str]], ranks: list[int]) -> str | None:
    for index in range(max(map(len, plans))):
        lines = [plan[index] if index < len(plan) else None for plan in plans]
        wanted = [None if line is None else line.split("\t")[1] for line in lines]
        for position, line in enumerate(lines):
            if wanted[position] != wanted[0]:
                if {lines[0], line} <= {p[-1] for p in plans}:
                    return (
                        "the ranks have the same gradients, but put them into "
                        f"different buckets. {_ADVICE}"
                    )
                return (
                    f"gradient {index} differs across ranks: rank {ranks[0]} has "
                    f"{_show(lines[0])}, rank {ranks[position]} has {_show(line)}. "
                    f"{_ADVICE}"
                )
    return None


def _show(line: str | None) -> str:
    if line is None or line.startswith(f"{_BUCKETS}\t"):
        return "no such gradient"
    name, described, *_ = line.split("\t")
    return f"'{name}' ({described})"
