"""Makes sure that every rank reduces the same gradients in the same buckets."""

import numpy as np

from ring_keras import _native
from ring_keras.buckets import BucketPlan
from ring_keras.communicator import ProcessSet
from ring_keras.errors import RankMismatchError

__all__ = ["agree_on_plan"]


def agree_on_plan(plan: BucketPlan, process_set: ProcessSet) -> None:
    """Compares this rank's plan with the others'; collective, and cheap.

    Args:
        plan: This rank's.
        process_set: The ranks that reduce gradients together.

    Raises:
        RankMismatchError: On every rank, if two plans differ. Names the first
            gradient on which they do.
    """
    communicator_id = process_set.communicator_id()
    digest = np.frombuffer(plan.digest(), np.uint8)
    digests = _native.allgather(digest, "gradients/plan", communicator_id)
    digests = digests.reshape(process_set.size(), digest.size)
    if (digests == digests[0]).all():
        return
    plans = _gather_texts(_describe(plan), process_set)
    raise RankMismatchError(_first_difference(plans, process_set.ranks))


def _describe(plan: BucketPlan) -> list[str]:
    names = [spec.name for spec in plan.specs]
    # A variable's name helps the reader; only what comes after it must agree.
    lines = plan.agreement()
    return [f"{name}\t{line}" for name, line in zip(names, lines, strict=False)]


def _gather_texts(lines: list[str], process_set: ProcessSet) -> list[list[str]]:
    text = np.frombuffer("\n".join(lines).encode(), np.uint8)
    communicator_id = process_set.communicator_id()
    nbytes = _native.allgather(
        np.array([text.size], np.int64), "gradients/plan/nbytes", communicator_id
    )
    texts = _native.allgather(text, "gradients/plan/text", communicator_id)
    parts = np.split(texts, np.cumsum(nbytes)[:-1])
    return [part.tobytes().decode().split("\n") for part in parts]


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
