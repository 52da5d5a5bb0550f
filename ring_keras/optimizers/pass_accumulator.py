"""Gradients of several passes, added up until it is time to reduce them."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.ops.step import in_order
from ring_keras.optimizers.gradient_values import Gradient

__all__ = ["PassAccumulator", "PassesSeen", "passes_watched"]

_Reduce = Callable[[list[Gradient]], list[Gradient]]


@dataclass
class PassesSeen:
    """What tapes add up in the steps of one model.

    Attributes:
        most: In how many passes; 1 if no step that was traced adds up any.
    """

    most: int = 1

    def refuse(self, lost_by: str) -> None:
        """Raises if there are sums, and the callback of this name loses them."""
        if lost_by and self.most > 1:
            raise ValueError(
                "[RK522] "
                f"ring_keras.{lost_by} has training go on in the middle of "
                "several passes, and a DistributedGradientTape with "
                f"backward_passes_per_step={self.most} keeps what it has added up "
                "where nothing saves it. Leave out backward_passes_per_step: give the "
                f"optimizer gradient_accumulation_steps={self.most}, and apply the "
                "gradients of each pass."
            )


class _Watched(threading.local):
    seen: PassesSeen | None = None
    lost_by = ""


_watched = _Watched()


@contextlib.contextmanager
def passes_watched(seen: PassesSeen, lost_by: str) -> Iterator[None]:
    """Around steps that are traced, or run eagerly.

    Args:
        seen: Takes down what they add up.
        lost_by: A callback that loses it, such as "data.Resume"; empty if none does.

    Raises:
        ValueError: If there is such a callback, and anything is added up.
    """
    seen.refuse(lost_by)
    before = _watched.seen, _watched.lost_by
    _watched.seen, _watched.lost_by = seen, lost_by
    try:
        yield
    finally:
        _watched.seen, _watched.lost_by = before


class _Sums:
    """What one list of gradients adds up to, and in how many passes."""

    def __init__(self, gradients: Sequence[tf.Tensor]) -> None:
        # Not in the graph of the function that is being traced.
        with tf.init_scope():
            self.passes = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.sums = [
                tf.Variable(tf.zeros(gradient.shape, gradient.dtype), trainable=False)
                for gradient in gradients
            ]


class PassAccumulator:
    """Adds gradients up, and has the last of `passes` sums reduced.

    Args:
        passes: How many make one reduction.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._sums: dict[tuple[Hashable, ...], _Sums] = {}

    def add(
        self, gradients: Sequence[Gradient], sources: Sequence[Any], reduce: _Reduce
    ) -> list[Gradient]:
        """Takes one pass's gradients.

        Args:
            gradients: Of this pass, with static shapes; None stays None.
            sources: What they are the gradients of; sums are kept for each list
                of sources.
            reduce: Called with the sums, in the last pass.

        Returns:
            What `reduce` returned; zeros in all passes but the last.
        """
        if _watched.seen is not None:
            _watched.seen.most = max(_watched.seen.most, self._passes)
            _watched.seen.refuse(_watched.lost_by)
        for source in sources:
            if not internals.is_variable(source):
                raise TypeError(
                    "`backward_passes_per_step` adds up gradients by variable. "
                    f"Received: a source of type {type(source).__name__}"
                )
        present = [index for index, g in enumerate(gradients) if g is not None]
        dense = [tf.convert_to_tensor(gradients[index]) for index in present]
        key = tuple(internals.variable_key(source) for source in sources)
        if key not in self._sums:
            self._sums[key] = _Sums(dense)
        kept = self._sums[key]
        totals = [kept_sum + g for g, kept_sum in zip(dense, kept.sums, strict=True)]

        def last() -> list[tf.Tensor]:
            of_all: list[Gradient] = list(gradients)
            for index, total in zip(present, totals, strict=True):
                of_all[index] = total
            reduced = reduce(of_all)
            for kept_sum, total in zip(kept.sums, totals, strict=True):
                kept_sum.assign(tf.zeros_like(total))
            return [reduced[index] for index in present]

        def another() -> list[tf.Tensor]:
            for kept_sum, total in zip(kept.sums, totals, strict=True):
                kept_sum.assign(total)
            return [tf.zeros_like(total) for total in totals]

        is_last = kept.passes.assign_add(1) % self._passes == 0
        results: list[Gradient] = list(gradients)
        with in_order():
            of_pass = tf.cond(is_last, last, another)
        for index, result in zip(present, of_pass, strict=True):
            results[index] = result
        return results
