"""Splits data among the ranks: every item on exactly one of them."""

import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import keras
import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.data.agreement import seen_alike
from ring_keras.data.resume import Resume
from ring_keras.data.shard_arrays import as_arrays, sample_of, shard_arrays
from ring_keras.data.shard_dataset import item_bytes, shard_dataset, shuffle_seeds
from ring_keras.data.shard_py_dataset import first_targets, shard_py_dataset
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.lifecycle.elastic_launcher import is_elastic
from ring_keras.ops.data_order import order_on
from ring_keras.ops.redivision import Division, Redivision
from ring_keras.training.parts import is_part, note_part
from ring_keras.training.uneven_batches import note_padding

__all__ = ["Remainder", "shard"]

Remainder = Literal["drop", "keep", "pad"]
_Data = TypeVar("_Data")

# A rank's share of the memory of a small host.
_MOST_SHUFFLED_BYTES = 2 << 30

# Of the last array that came alone, as x or y of a fit() may: itself, its part, and the
# seed. By its length.
_Lone: TypeAlias = tuple[Callable[[], Any], Callable[[], Any], int | None]
_lone_arrays: PerJob[dict[int, _Lone]] = PerJob(dict)


def shard(
    data: _Data,
    *,
    seed: int | None = None,
    remainder: Remainder = "drop",
    resume: Resume | None = None,
    process_set: ProcessSet | None = None,
) -> _Data:
    """Returns this rank's part of the data.

    Rank r of n gets items r, r + n, r + 2n and so on. So batch k of all ranks
    together has the same items as batch k of one process, with a batch n times
    as large. Shard before batching. Every rank of the process set must call
    it: the ranks check that they split the same number of items in the same
    order.

    Examples:
        >>> items = tf.data.Dataset.range(8)
        >>> list(ring.data.shard(items).as_numpy_iterator())  # Rank 1: 1, 3, 5, 7.
        [np.int64(0), np.int64(2), np.int64(4), np.int64(6)]
        >>> train = ring.data.shard(items, seed=1).batch(2)
        >>> len(train)
        2

    Args:
        data: The same on every rank: a `tf.data.Dataset` of single items; arrays,
            or tuples, lists and dicts of arrays with equal first dimensions; or a
            `keras.utils.PyDataset`, which is divided into whole batches and keeps
            its workers.
        seed: Shuffles all items before they are split, in the same way on every
            rank; the same number on every rank.

            - A dataset: each rank reads all items, and keeps them in memory. They
              are shuffled again in each epoch. A `fit` with a distributed optimizer
              or a callback of ring_keras sets its number. Elsewhere each new pass has
              another order, so every rank must begin the same number of passes,
              which is checked before the first step.
            - A `PyDataset`: its batches are shuffled again in each epoch.
            - Arrays are shuffled once.

            A dataset that was shuffled before needs no seed here, but that shuffle
            must have had one.
        remainder: What to do if the number of items is no multiple of the number
            of ranks.

            - "drop" leaves out the last few items, fewer than there are ranks, so
              all ranks have the same number.
            - "pad" gives the ranks that lack an item a copy with a sample weight
              of 0, which a training step ignores. It takes pairs `(x, y)` or
              triples with sample weights, and returns triples.
            - "keep" leaves out none. Use it for evaluation, and for training with
              `ring_keras.data.join`.
        resume: Makes the order depend only on the number of the epoch, and not on
            the number of passes, so that training can continue in the middle of an
            epoch. Needs a seed.
        process_set: Ranks to split among. Defaults to all.

    Returns:
        Data of the same kind.

    Raises:
        ValueError: If the data cannot be split so that every item is on one
            rank, for example because they were shuffled without a seed.
        TypeError: If `data` is of another kind.
        RankMismatchError: If the ranks have different numbers of items, different
            seeds (those of `tf.random.set_seed` and `keras.utils.set_random_seed`
            count, too), or different rows in arrays, in the sources of a dataset or
            in the targets of a `PyDataset`'s first batch, of which a few are
            compared. Also if only some ranks raise one of the errors above.
    """
    process_set = process_set or global_process_set
    rows: list[Any] = []

    def split() -> tuple[Any, str, None]:
        given = data
        if isinstance(data, tf.data.Dataset):
            rows.extend(internals.source_tensors(data))
        elif not isinstance(data, keras.utils.PyDataset):
            given = as_arrays(data)
            rows.append(given)
        part, ours = _split(given, seed, remainder, resume, process_set)
        if isinstance(data, keras.utils.PyDataset) and process_set.size() > 1:
            rows.extend(first_targets(data))
        return part, " and ".join(ours), None

    return seen_alike(  # type: ignore[no-any-return]
        "data.shard",
        split,
        process_set,
        problem="the data differ across ranks",
        remedy="Give every rank the same data and seeds: shuffle and split arrays with "
        "a seed, as np.random.default_rng(1) and train_test_split(random_state=1) do; "
        "call keras.utils.set_random_seed() with a number of each rank's own only "
        "after this.",
        sample=lambda: sample_of(rows),
    )


def _split(
    data: Any,
    seed: int | None,
    remainder: Remainder,
    resume: Resume | None,
    process_set: ProcessSet,
) -> tuple[Any, list[str]]:
    """This rank's part, and what the ranks must agree on."""
    if remainder not in get_args(Remainder):
        raise ValueError(
            "`remainder` must be 'drop', 'keep' or 'pad'. "
            f"Received: remainder={remainder!r}"
        )
    if resume is not None and seed is None:
        raise ValueError("`resume` takes a seed, from which it makes each epoch's.")
    rank, size = process_set.rank(), process_set.size()
    division = Division(rank, size)
    part: Any
    if isinstance(data, tf.data.Dataset):
        part, part_of = shard_dataset(data, seed, remainder, division, resume)
        order = order_on(part)
        if order is not None:
            order.add_to_job(process_set)
        count = int(data.cardinality())
        ours = _described(count, _seeds(data, seed))
        shuffled_bytes = 0 if seed is None else count * item_bytes(data)
        if shuffled_bytes > _MOST_SHUFFLED_BYTES and process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK514] "
                "shard(seed=...) has all %d items in memory on every rank to shuffle "
                "them, %s GB, before each epoch's first batch. Shard what is smaller, "
                "such as numbers or names of files, before map(); or shuffle some at a "
                "time: shard(dataset).shuffle(10_000).",
                count,
                f"{shuffled_bytes / 1e9:.1f}",
            )
        if is_elastic() and part_of is not None and process_set is global_process_set:
            noted = Redivision(tuple(ours), count, remainder, division, part_of)
            noted.put_on(part)
    elif isinstance(data, keras.utils.PyDataset):
        part = shard_py_dataset(data, seed, remainder, rank, size, resume=resume)
        count = -1 if data.num_batches is None else data.num_batches
        ours = _described(count, [seed])
    else:
        if resume is not None:
            raise TypeError(
                "[RK510] "
                "`resume` takes a tf.data.Dataset or a keras.utils.PyDataset: arrays "
                "are shuffled by fit(), on each rank in its own way. Make a dataset "
                "of them with tf.data.Dataset.from_tensor_slices(). Received: "
                f"data of type {type(data).__name__}"
            )
        part = shard_arrays(data, seed, remainder, rank, size)
        count = len(tf.nest.flatten(data)[0])
        ours = _described(count, [seed])
        if not tf.nest.is_nested(part) and process_set.rank() == 0:
            _warn_of_other_order(data, part, seed)
    if remainder == "drop" and 0 <= count < process_set.size() > 1:
        what = "a batch" if isinstance(data, keras.utils.PyDataset) else "an item"
        raise ValueError(
            "[RK511] "
            f"ring_keras.data.shard needs {what} for each rank, of which there are "
            f"{process_set.size()}. Received: data with {count}. remainder='keep', for "
            "evaluation, gives ranks none; remainder='pad' gives them padding."
        )
    if remainder == "pad":
        note_padding()
    if process_set.size() > 1:
        if is_part(data) and process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK504] "
                "shard(): these data are a rank's part already. One item "
                "in %d of it is left, and no rank trains on the others. Call it once.",
                process_set.size(),
            )
        note_part(part, process_set)
    return part, ours


def _warn_of_other_order(array: Any, part: Any, seed: int | None) -> None:
    """If the rows may belong to those of another call, in another order."""
    count = len(array)
    known = _lone_arrays.of(current_job())
    other, its_part, before = known.get(count, (lambda: None, lambda: None, None))
    known[count] = weakref.ref(array), weakref.ref(part), seed
    # The same one is divided anew.
    if other() is not array and its_part() is not None and before != seed:
        logging.warning(
            "ring_keras: [RK515] "
            "shard() has divided an array of %d rows with seed=%s, and now another one "
            "with seed=%s. If they are the x and y of one fit(), their rows belong "
            "together no more: call shard((x, y), seed=%s).",
            count,
            before,
            seed,
            seed if before is None else before,
        )


def _seeds(dataset: tf.data.Dataset, seed: int | None) -> list[Any]:
    """All that governs the order, `tf.random.set_seed` among it."""
    if seed is not None:
        dataset = dataset.shuffle(1, seed=seed)
    return shuffle_seeds(dataset)


def _described(count: int, seeds: list[Any]) -> list[str]:
    return [f"{count} items" if count >= 0 else "items", f"seeds {seeds}"]
