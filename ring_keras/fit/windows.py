"""From one meeting to the next: how far a rank is, and which parts of a model meet."""

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import tensorflow as tf

__all__ = ["Window", "fragments_of"]

_Part = TypeVar("_Part")


class _Lengths(Protocol):
    sync_every: int

    @property
    def batches_apart(self) -> int: ...


class Window:
    """Counts this rank's batches since all ranks have met; in a graph, by its ops.

    Args:
        lengths: Its `sync_every` and `batches_apart` say how many updates, and how many
            batches, there are from one meeting to the next.
        iterations: All batches that count so far; a variable.
        steps: Those of them that the rank has taken since; a variable.
        extra: What it has taken beside those; a variable, or None where there are none.
    """

    def __init__(
        self, lengths: _Lengths, iterations: Any, steps: Any, extra: Any
    ) -> None:
        self.steps = steps
        self.extra = extra
        self._lengths = lengths
        self._iterations = iterations

    def has_trained(self) -> tf.Tensor:
        """Whether this rank has, in it."""
        has_counted = self.steps > 0
        return has_counted if self.extra is None else has_counted | (self.extra > 0)

    def count(self, is_extra: tf.Tensor | None) -> None:
        """One batch more; None: there are no extra ones."""
        if is_extra is None:
            self._iterations.assign_add(1)
            self.steps.assign_add(1)
            return
        extra = tf.cast(is_extra, tf.int64)
        self._iterations.assign_add(tf.cast(1 - extra, self._iterations.dtype))
        self.steps.assign_add(1 - extra)
        self.extra.assign_add(extra)

    def begin(self) -> None:
        """All have met."""
        self.steps.assign(0)
        if self.extra is not None:
            self.extra.assign(0)

    def place(self) -> tf.Tensor:
        """How many batches of it have been.

        Those count, too, whose gradients wait for an update since before it began, as
        after an epoch whose batches are no whole updates: ranks meet after updates.
        """
        before = tf.convert_to_tensor(self._iterations) - tf.cast(
            self.steps, self._iterations.dtype
        )
        batches = self._lengths.batches_apart
        waiting = before % (batches // self._lengths.sync_every)
        return (waiting + tf.cast(self.steps, waiting.dtype)) % batches

    def due(
        self, parts: Sequence[_Part], later: int = 0
    ) -> Iterator[tuple[_Part, int]]:
        """Each part that meets in turn, and at which place it does.

        Args:
            parts: All of them.
            later: Updates after a meeting.
        """
        batches, updates = self._lengths.batches_apart, self._lengths.sync_every
        for number, part in enumerate(parts, 1):
            update = -(-number * updates // len(parts)) + later
            yield part, update * (batches // updates) % batches


def fragments_of(variables: Sequence[Any], count: int) -> list[list[int]]:
    """Divides positions of variables, so that all parts have about as many weights."""
    sizes = [math.prod(variable.shape) for variable in variables]
    fragments: list[list[int]] = [[] for _ in range(count)]
    totals = [(0, 0, number) for number in range(count)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        # Of parts of one size, that with the fewest: so none stays empty.
        total, length, number = heapq.heappop(totals)
        fragments[number].append(index)
        heapq.heappush(totals, (total + sizes[index], length + 1, number))
    return [sorted(fragment) for fragment in fragments]
