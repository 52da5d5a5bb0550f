"""Makes sure that every rank reduces the same gradients in the same buckets."""

import numpy as np

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.job.agreements import agreed_without_all
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.buckets import BucketPlan

__all__ = ["agree_on_plan"]


def agree_on_plan(plan: BucketPlan, process_set: ProcessSet) -> bool:
    """Compares this rank's plan with the others'; collective, and cheap.

    Once some ranks have agreed on a plan while others were in join(), no rank
    asks again: some would not answer.

    Args:
        plan: This rank's.
        process_set: The ranks that reduce gradients together.

    Returns:
        Whether all ranks have agreed. If not, they must do without anything else
        that all would have to agree on.

    Raises:
        RankMismatchError: On every rank, if two plans differ. Names the first
            gradient on which they do.
    """
    communicator_id = process_set.communicator_id()
    known = agreed_without_all(process_set)
    if plan.digest() in known:
        return False
    digest = np.frombuffer(plan.digest(), np.uint8)
    digests = _native.allgather(digest, "gradients/plan", communicator_id)
    # A rank that is in join() has no plan.
    digests = digests.reshape(-1, digest.size)
    if (digests == digests[0]).all():
        if len(digests) < process_set.size():
            known.add(plan.digest())
            return False
        return True
    ranks, plans = _gather_texts(_describe(plan), communicator_id)
    raise RankMismatchError(_first_difference(plans, ranks))


def _describe(plan: BucketPlan) -> list[str]:
    names = [spec.name for spec in plan.specs]
    # A variable's name helps the reader; only what comes after it must agree.
    lines = plan.agreement()
    return [f"{name}\t{line}" for name, line in zip(names, lines, strict=False)]


def _gather_texts(
    lines: list[str], communicator_id: int
) -> tuple[list[int], list[list[str]]]:
    """The ranks that have a plan, and their plans."""
    text = np.frombuffer("\n".join(lines).encode(), np.uint8)
    head = np.array([[_native.topology()[0], text.size]], np.int64)
    heads = _native.allgather(head, "gradients/plan/nbytes", communicator_id)
    texts = _native.allgather(text, "gradients/plan/text", communicator_id)
    parts = np.split(texts, np.cumsum(heads[:, 1])[:-1])
    plans = [part.tobytes().decode().split("\n") for part in parts]
    return heads[:, 0].tolist(), plans


def _first_difference(plans: list[list[str]], ranks: list[int]) -> str:
    advice = (
        "Build the same model, with the same trainable variables and bucket size, "
        "on every rank."
    )
    for index in range(max(map(len, plans))):
        lines = [plan[index] if index < len(plan) else None for plan in plans]
        wanted = [None if line is None else line.split("\t")[1] for line in lines]
        for position, line in enumerate(lines):
            if wanted[position] != wanted[0]:
                return (
                    f"gradient {index} differs across ranks: rank {ranks[0]} has "
                    f"{_show(lines[0])}, rank {ranks[position]} has {_show(line)}. "
                    f"{advice}"
                )
    return (
        "the ranks have the same gradients, but put them into different buckets. "
        f"{advice}"
    )


def _show(line: str | None) -> str:
    if line is None:
        return "no such gradient"
    name, described = line.split("\t")
    return f"'{name}' ({described})"
