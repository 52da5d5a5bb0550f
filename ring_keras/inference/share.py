"""The part of the batches that one rank works on, and what all make of it."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.data.agreement import seen_alike
from ring_keras.errors import RankMismatchError
from ring_keras.inference.sources import Source, source_of
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.common_layers import described_layers, require_same_layers
from ring_keras.states.weight_digests import digests, variable_name, who_has_what
from ring_keras.values.outcomes import gather_outcomes

__all__ = ["Share"]

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Share:
    """Batches that follow each other: rank 0 has the first ones, and so on.

    They are those that one process would read, none is cut. A rank that has none
    works on the first of all, so that it knows what comes out, and leaves that out.
    """

    name: str
    process_set: ProcessSet
    arguments: dict[str, Any]
    """For the method of Keras."""
    is_empty: bool

    @classmethod
    def of(
        cls,
        name: str,
        process_set: ProcessSet,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        batch_size: int | None = None,
    ) -> "Share":
        """This rank's, once all know that they divide the same data; collective.

        Raises:
            ValueError: If there are no data, or as `source_of`.
            TypeError: As `source_of`.
            RankMismatchError: If ranks have different data, or only some raise.
        """

        def look() -> tuple[Share, str, None]:
            source = source_of(name, x, y, sample_weight, batch_size)
            if source.count == 0:
                raise ValueError(f"ring_keras.{name} was given no data.")
            words = f"{source.count} batches, of which the first is {_print(source)}"
            return cls._cut(name, process_set, source), words, None

        return seen_alike(
            name,
            look,
            process_set,
            problem="the data differ across ranks",
            remedy="Give every rank all of the data, in the same order, without random "
            "changes: each rank reads its part of them, so ring_keras.data.shard() "
            "is not for these.",
        )

    @classmethod
    def _cut(cls, name: str, process_set: ProcessSet, source: Source) -> "Share":
        place, size = process_set.rank(), process_set.size()
        start = math.ceil(source.count * place / size)
        end = math.ceil(source.count * (place + 1) / size)
        is_empty = start == end
        part = source.between(0, 1) if is_empty else source.between(start, end)
        return cls(name, process_set, part, is_empty)

    def work(
        self, model: keras.Model, run: Callable[[], tuple[_Value, Any]]
    ) -> tuple[_Value, list[Any]]:
        """Runs the model on it, with an error on all ranks if one fails.

        Args:
            model: The same on all ranks, which is made sure of.
            run: See `gather_outcomes`.

        Raises:
            ValueError: If the model goes on from batch to batch.
            RankMismatchError: If the ranks' weights differ, or only some ranks fail.
        """

        def look() -> tuple[_Value, Any]:
            if internals.recurrent_states(model):
                raise ValueError(
                    f"ring_keras.{self.name}: layers with stateful=True keep their "
                    "state from one batch to the next, which another rank has. Call "
                    f"model.{self.name}() on one rank."
                )
            value, plain = run()
            return value, [plain, digests(model.weights), described_layers(model)]

        value, everyones = gather_outcomes(self.name, look, self.process_set)
        self._require_same_weights(model, [theirs for _, theirs, _ in everyones])
        require_same_layers(
            [theirs for _, _, theirs in everyones],
            f"ring_keras.{self.name}",
            self.process_set,
        )
        return value, [plain for plain, _, _ in everyones]

    def _require_same_weights(
        self, model: keras.Model, everyones: list[list[int]]
    ) -> None:
        if all(theirs == everyones[0] for theirs in everyones):
            return
        counts = [len(theirs) for theirs in everyones]
        what = f"the ranks' models have {counts} weights"
        if len(set(counts)) == 1:
            table = np.array(everyones)
            columns = np.flatnonzero((table != table[0]).any(axis=0))
            first = int(columns[0])
            holders = who_has_what(table[:, first], self.process_set.ranks)
            what = (
                f"weight '{variable_name(model.weights[first])}' differs across ranks: "
                f"{holders} ({len(columns)} of {counts[0]} weights differ)"
            )
        raise RankMismatchError(
            "[RK323] "
            f"ring_keras.{self.name}: {what}. Load or build the model alike on all "
            "ranks, or call ring_keras.broadcast_variables(model.weights) first; after "
            "a loop of your own, ring_keras.layers.average_moving_statistics(model)."
        )

    def verbose(self, wanted: Any) -> Any:
        """One rank shows its progress for all."""
        return wanted if self.process_set.rank() == 0 else 0


def _print(source: Source) -> str:
    """A fingerprint of the first batch."""
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(source.first(), expand_composites=True):
        array = np.asarray(leaf)
        values = repr(array.tolist()).encode() if array.dtype == object else array
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(values if isinstance(values, bytes) else array.tobytes())
    return digest.hexdigest()[:8]
