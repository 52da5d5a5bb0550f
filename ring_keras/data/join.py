"""Lets every rank iterate as often as the one with the most batches."""

from typing import Any

import tensorflow as tf

from ring_keras.data.endless import INFINITE, require_all_or_none_infinite
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.ops.allreduce import allreduce
from ring_keras.training.parts import note_extended, note_joined
from ring_keras.training.uneven_batches import note_empty_batches
from ring_keras.values.outcomes import gather_outcomes
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["join"]


def join(
    dataset: tf.data.Dataset, *, process_set: ProcessSet | None = None
) -> tf.data.Dataset:
    """Returns the dataset with as many batches as the longest dataset of all ranks.

    A rank without data continues with empty batches, which have no rows. In `fit`
    with a callback of `ring_keras.callbacks`, such a batch does not count: the
    average divides by the others' examples, and neither metrics nor moving
    statistics change. In a loop of your own, use `weighted_step` for that. So all
    ranks take the same number of steps, and every example is used.

    Call it last, after `batch` and `prefetch`, on every rank of the process set.
    If a rank does not know its number of batches, the ranks ask each other before
    each batch is fetched. Then every rank must fetch the same number of batches,
    and nothing should prefetch.

    Examples:
        Rank 0 has 1 batch, rank 1 has 3:

        >>> batches = tf.data.Dataset.range(2 + 4 * ring.rank()).batch(2)
        >>> [len(batch) for batch in ring.data.join(batches)]
        [2, 0, 0]

    Args:
        dataset: This rank's dataset, of batches of dense tensors. The number of
            batches may differ between ranks; their structure must be the same.
        process_set: Ranks that train together. Defaults to all.

    Returns:
        A dataset with the same structure, whose batches may be empty.

    Raises:
        ValueError: If the dataset is not one of batches of dense tensors.
        RankMismatchError: If the data of some ranks end and those of others never
            do, or if only some ranks raise the `ValueError`.
    """
    process_set = process_set or global_process_set
    empty, counts = gather_outcomes(
        "data.join",
        lambda: (_empty_batch(dataset.element_spec), int(dataset.cardinality())),
        process_set,
    )
    if process_set.size() == 1:
        return dataset
    require_all_or_none_infinite(counts, process_set.ranks)
    if min(counts) == INFINITE:
        return dataset
    note_empty_batches()
    endless = tf.data.Dataset.from_tensors(empty).repeat()
    if min(counts) >= 0:
        missing = max(counts) - counts[process_set.rank()]
        # On ranks that have all theirs too: the batches' spec is the same then.
        extended = dataset.concatenate(endless.take(missing))
        note_extended(extended)
        return extended
    joined = _until_all_have_ended(dataset, endless, process_set)
    note_joined(joined)
    note_extended(joined)
    return joined


def _until_all_have_ended(
    dataset: tf.data.Dataset, endless: tf.data.Dataset, process_set: ProcessSet
) -> tf.data.Dataset:
    is_tuple = isinstance(dataset.element_spec, tuple)
    with tf.init_scope(), tf.device("CPU:0"):  # Where tf.data reads it.
        passes = tf.Variable(0, dtype=tf.int64, trainable=False)

    def marked(has_data: int) -> Any:
        return lambda *batch: (
            tf.constant(has_data, tf.int64),
            batch if is_tuple else batch[0],
        )

    def ask_all(number: tf.Tensor, marked_batch: Any) -> Any:
        has_data, batch = marked_batch
        return _anyone_has(has_data, number, process_set), batch

    options = tf.data.Options()
    # It would ask for a batch that nobody may want.
    options.experimental_optimization.inject_prefetch = False
    numbers = (
        tf.data.Dataset.from_tensors(0)
        .map(lambda _: passes.assign_add(1))
        .flat_map(lambda number: tf.data.Dataset.from_tensors(number).repeat())
    )
    batches = dataset.map(marked(1)).concatenate(endless.map(marked(0)))
    return (
        tf.data.Dataset.zip((numbers, batches))
        .map(ask_all)
        .take_while(lambda anyone_has, _: anyone_has)
        # Not map(), which TensorFlow runs ahead.
        .flat_map(lambda _, batch: tf.data.Dataset.from_tensors(batch))
        .with_options(options)
    )


def _anyone_has(
    has_data: tf.Tensor, number: tf.Tensor, process_set: ProcessSet
) -> tf.Tensor:
    """Whether any rank has a batch for the next step of this pass over the data.

    Something may have fetched ahead, and asked for a batch of an earlier pass that
    was never wanted. It is not there any more to hear the answer, so whoever gets
    its question asks again. A rank that really is in an earlier pass, since its
    steps are more than the others', raises.
    """

    def ask() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        answers = allreduce(
            tf.stack([has_data, number, -number]),
            ReduceOp.MAX,
            name="data.join/next",
            process_set=process_set,
        )
        return answers[0] > 0, answers[1], -answers[2]

    anyone_has, latest, _ = tf.while_loop(
        lambda _, latest, earliest: tf.logical_and(latest == number, earliest < number),
        lambda *_: ask(),
        ask(),
        parallel_iterations=1,
    )
    with tf.control_dependencies(
        [
            tf.debugging.assert_equal(
                latest,
                number,
                "ring_keras.data.join: other ranks have begun their next pass over "
                "the data. Every rank must fetch as many batches in each.",
            )
        ]
    ):
        return tf.identity(anyone_has)


def _empty_batch(element_spec: Any) -> Any:
    def empty(spec: Any) -> tf.Tensor:
        dense = isinstance(spec, tf.TensorSpec) and spec.shape.rank != 0
        if not dense or spec.shape.rank is None:
            raise ValueError(
                "ring_keras.data.join takes batches of dense tensors of known rank. "
                f"Received: a dataset of {element_spec}. Call it after "
                "dataset.batch() or padded_batch()."
            )
        # An unknown dimension, such as the length of a sentence, may as well be 1.
        return tf.zeros([0, *(n or 1 for n in spec.shape[1:].as_list())], spec.dtype)

    return tf.nest.map_structure(empty, element_spec)
