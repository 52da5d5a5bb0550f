"""What the ranks have recorded, brought together."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ring_keras as ring
from ring_keras.verify.recording import Recording, examples
from ring_keras.verify.state import Array, digest

__all__ = ["Apart", "OfAllRanks", "gather"]


@dataclass(frozen=True)
class Apart:
    """Variables that were not the same on all ranks.

    Attributes:
        step: After which step; 0: before the first.
        names: Of the variables.
        distances: For each rank, the largest difference from rank 0 in any of them.
    """

    step: int
    names: list[str]
    distances: list[float]


@dataclass(frozen=True)
class OfAllRanks:
    """The recordings of all ranks.

    Attributes:
        steps: How many each of them has taken.
        batches: By step: the leaves of each rank's batch.
        losses: By step: the mean over all ranks' examples; NaN if there is none.
        apart: Where the ranks first differed; None: nowhere.
        started_apart: The same before the first step.
    """

    steps: int
    batches: list[list[list[Array]]]
    losses: list[float]
    apart: Apart | None
    started_apart: Apart | None

    def global_batches(self, seed: int | None = None) -> list[list[Array]]:
        """By step: the ranks' batches in one, in their order or another by a seed."""
        generator = np.random.default_rng(seed)
        whole = []
        for of_ranks in self.batches:
            ordered = of_ranks if seed is None else of_ranks[::-1]
            leaves = [_joined(parts) for parts in zip(*ordered, strict=True)]
            if seed is not None:
                leaves = _reordered(leaves, generator)
            whole.append(leaves)
        return whole

    def batch_sizes(self) -> list[int]:
        """Of each rank's first batch."""
        return [examples(leaves) for leaves in self.batches[0]]

    def shared_examples(self) -> tuple[int, int]:
        """How many examples were on more than one rank, and how many there were."""
        of_ranks = [
            {row for of_step in self.batches for row in _row_digests(of_step[rank])}
            for rank in range(len(self.batches[0]))
        ]
        everything = set().union(*of_ranks)
        shared = [row for row in everything if sum(row in own for own in of_ranks) > 1]
        return len(shared), len(everything)


def gather(recording: Recording) -> OfAllRanks:
    """Brings the recordings together: a collective of all ranks."""
    steps = min(ring.allgather_object(len(recording.after), name="verify/steps"))
    batches = ring.allgather_object(recording.batches[:steps], name="verify/batches")
    _bring_parts(recording, steps)
    losses = np.array(
        ring.allgather_object(recording.losses[:steps], name="verify/losses")
    ).reshape(ring.size(), steps, 2)
    totals = losses.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = totals[:, 0] / totals[:, 1]
    started_apart = None
    first = recording.before[0] if steps else None
    # Whether there is one is the same everywhere: it depends on the model.
    if first is not None:
        started_apart = _compare(recording, first, 0)
    apart = None
    for step in range(steps):
        apart = apart or _compare(recording, recording.after[step], step + 1)
    return OfAllRanks(
        steps,
        [[of_rank[step] for of_rank in batches] for step in range(steps)],
        means.tolist(),
        apart,
        started_apart,
    )


def _bring_parts(recording: Recording, steps: int) -> None:
    """Gives each rank the others' parts of what optimizers keep; collective."""
    shards = recording.state.shards() if steps else {}
    states = [*recording.before[:steps], *recording.after[:steps]]
    if not any(ring.allgather_object(bool(shards), name="verify/divided")):
        return
    own = [
        {} if state is None else {place: state[place].reshape(-1) for place in shards}
        for state in states
    ]
    everyones = ring.allgather_object(own, name="verify/parts")
    for number, state in enumerate(states):
        for place, shard in shards.items():
            if state is not None:
                pieces = [everyones[its.owner][number][place] for its in shard.pieces]
                state[place] = np.concatenate(pieces).reshape(shard.shape)


def _compare(recording: Recording, values: Sequence[Array], step: int) -> Apart | None:
    """How the ranks' states differ, if they do: a collective of all ranks."""
    own = [digest(value) for value in values[: recording.state.common_count]]
    of_ranks = ring.allgather_object(own, name="verify/digests")
    differing = [
        i
        for i, digests in enumerate(zip(*of_ranks, strict=True))
        if len(set(digests)) > 1
    ]
    if not differing:
        return None
    roots = ring.broadcast_object([values[i] for i in differing], name="verify/values")
    distance = max(
        _distance(values[i], root) for i, root in zip(differing, roots, strict=True)
    )
    names = [recording.state.names[i] for i in differing]
    return Apart(step, names, ring.allgather_object(distance, name="verify/distances"))


def _distance(one: Array, other: Array) -> float:
    difference = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    return float(np.max(np.abs(difference), initial=0.0))


def _joined(parts: Sequence[Array]) -> Array:
    if not parts[0].ndim:  # The same number for a whole batch.
        return parts[0]
    return np.concatenate(parts)


def _reordered(leaves: list[Array], generator: np.random.Generator) -> list[Array]:
    count = examples(leaves)
    if any(leaf.ndim and len(leaf) != count for leaf in leaves):
        return leaves  # Which rows belong together is not known.
    order = generator.permutation(count)
    return [leaf[order] if leaf.ndim else leaf for leaf in leaves]


def _row_digests(leaves: Sequence[Array]) -> list[int]:
    count = examples(leaves)
    rows: list[int] = [0] * count
    for leaf in leaves:
        if leaf.ndim and leaf.shape[0] == count:
            data: Any = np.ascontiguousarray(leaf)
            rows = [zlib.crc32(data[i].tobytes(), row) for i, row in enumerate(rows)]
    return rows
