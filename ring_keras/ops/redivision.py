"""Data that ranks can divide anew in the middle of an epoch."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

__all__ = ["Division", "Redivision", "redivision_of"]

_ATTRIBUTE = "_ring_keras_redivision"

# Transformations of which each item, or batch of items, comes of those at its place.
_BATCHES = ("batch", "padded_batch")
_FOLLOWED = (*_BATCHES, "map", "prefetch", "with_options")


@dataclass(frozen=True)
class Division:
    """Whose part of what.

    Attributes:
        rank: Of those that divide the data.
        size: How many they are.
        start: How many items of all are left out, from the first.
    """

    rank: int
    size: int
    start: int = 0


@dataclass(frozen=True)
class Redivision:
    """How a rank's part was made of the data of all, to make it of other parts.

    What is done to the part afterwards, with methods that keep its order, is noted, and
    done to other parts alike.

    Attributes:
        description: Of the data, the same on every rank.
        count: How many items all ranks have together.
        remainder: See `ring_keras.data.shard`.
        division: What this part is of.
        part_of: Makes the part of a division.
        calls: What was done to it: names and arguments of methods.
    """

    description: tuple[str, ...]
    count: int
    remainder: str
    division: Division
    part_of: Callable[[Division], tf.data.Dataset]
    calls: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = ()

    def put_on(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Has `redivision_of` find it there, and on what is made of that."""
        vars(dataset)[_ATTRIBUTE] = self
        for name in _FOLLOWED:
            vars(dataset)[name] = functools.partial(self._follow, dataset, name)
        return dataset

    def make(self, division: Division) -> tf.data.Dataset:
        """The same data, another part."""
        dataset = self.part_of(division)
        for name, args, kwargs in self.calls:
            dataset = getattr(dataset, name)(*args, **kwargs)
        return replace(self, division=division).put_on(dataset)

    def batch_size(self) -> int:
        """How many items make a batch.

        Raises:
            ValueError: If batches are batched, or may come in another order.
        """
        sizes = []
        for name, args, kwargs in self.calls:
            method = getattr(tf.data.Dataset, name)
            given = inspect.signature(method).bind(None, *args, **kwargs).arguments
            if given.get("deterministic") is False:
                raise ValueError(f"{name}(deterministic=False) gives up their order.")
            if name == "with_options" and given["options"].deterministic is False:
                raise ValueError("options.deterministic = False gives up their order.")
            if name in _BATCHES:
                sizes.append(int(given["batch_size"]))
        if len(sizes) > 1:
            raise ValueError(f"it is batched more than once, by {sizes}.")
        return sizes[0] if sizes else 1

    def _follow(
        self, dataset: tf.data.Dataset, name: str, *args: Any, **kwargs: Any
    ) -> tf.data.Dataset:
        result = getattr(type(dataset), name)(dataset, *args, **kwargs)
        call = (name, args, kwargs)
        return replace(self, calls=(*self.calls, call)).put_on(result)


def redivision_of(data: Any) -> Redivision | None:
    """How this very dataset can be divided anew; None if it cannot."""
    found: Redivision | None = getattr(data, _ATTRIBUTE, None)
    return found
