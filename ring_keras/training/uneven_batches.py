"""What a training step does where ranks have different numbers of examples.

Two things stand for examples that are not there. A *padding row* is a copy of an
example with the sample weight -0.0: arithmetic sees 0, and its sign tells it
from a 0 of the user's, which `shard` makes +0.0. An *empty batch* has no rows: its
rank has no more data. Many layers fail on one, so a step runs on a row of zeros in its
place.

Neither may count in an average, a metric or a moving statistic. A step looks for
them only after this process has made data that can hold them, and where its own
batches can, so that others pay nothing.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ring_keras.ops.arguments import to_factor
from ring_keras.states.merging_metrics import python_states_kept

__all__ = [
    "at_least_one_row",
    "empty_batches_were_made",
    "example_count",
    "is_of_unknown_length",
    "is_weighted_by_row",
    "may_be_empty",
    "may_have_padding",
    "note_empty_batches",
    "note_padding",
    "padding_was_made",
    "real_example_count",
    "undone_if",
    "without_padding",
]

# What has the bits of a float of each size.
_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


class _Made:
    """What was made, ever: data may be of an earlier job of this process."""

    padding = False
    empty_batches = False


def note_padding() -> None:
    """Data are being made some of whose rows are padding."""
    _Made.padding = True


def note_empty_batches() -> None:
    """Data are being made some of whose batches are empty."""
    _Made.empty_batches = True


def padding_was_made() -> bool:
    """Whether there are such data."""
    return _Made.padding


def empty_batches_were_made() -> bool:
    """Whether there are such data."""
    return _Made.empty_batches


def may_have_padding(data: Any) -> bool:
    """Whether a batch like this can have padding rows, which `shard` makes."""
    return _Made.padding and is_weighted_by_row(data)


def may_be_empty(data: Any) -> bool:
    """Whether a batch like this can have no rows: `join` makes such."""
    return _Made.empty_batches and is_of_unknown_length(data)


def is_weighted_by_row(data: Any) -> bool:
    """Whether the batch has sample weights that can mark rows as padding."""
    weights = _sample_weights(data)
    return bool(weights) and all(map(_can_mark, weights))


def is_of_unknown_length(data: Any) -> bool:
    """Whether the graph does not know that the batch has rows."""
    leaf = _leaf_of_rows(data)
    if leaf is None:
        return False
    shape = tf.TensorShape(leaf.shape)
    return shape.rank is None or not shape[0]


def example_count(data: Any) -> tf.Tensor | None:
    """Rows of the batch, as float64; None if it has none.

    In host memory, where the engine reads it.
    """
    leaf = _leaf_of_rows(data)
    if leaf is None:
        return None
    if isinstance(leaf, tf.RaggedTensor):
        return to_factor(leaf.nrows())
    if isinstance(leaf, tf.SparseTensor):
        return to_factor(leaf.dense_shape[0])
    shape = tf.TensorShape(leaf.shape)
    if shape.rank is None:
        # The 1 is for one that turns out to be a scalar.
        return to_factor(tf.concat([tf.shape(leaf), [1]], 0)[0])
    return to_factor(shape[0] or tf.shape(leaf)[0])


def real_example_count(data: Any) -> tf.Tensor:
    """`example_count`, less padding rows where the batch can have them; 0 for None."""
    if may_have_padding(data):
        return tf.reduce_sum(tf.cast(_real_rows(data), tf.float64))
    count = example_count(data)
    return tf.zeros([], tf.float64) if count is None else count


def without_padding(data: Any) -> Any:
    """The batch without its padding rows.

    Sample weights may have any structure and shape: all of those of a padding row are
    0, and those that `shard` has made say that it is one.
    """
    if not is_weighted_by_row(data):
        return data
    real = _real_rows(data)
    return tf.nest.map_structure(lambda leaf: _rows_where(leaf, real), data)


def at_least_one_row(data: Any) -> Any:
    """The batch; one row of zeros if it is empty."""
    count = example_count(data)
    if count is None:
        return data
    missing = tf.cast(count == 0, tf.int32)
    return tf.nest.map_structure(lambda leaf: _extended(leaf, missing), data)


@contextlib.contextmanager
def undone_if(
    condition: tf.Tensor,
    variables: Iterable[Any],
    metrics: Iterable[keras.metrics.Metric] = (),
) -> Iterator[None]:
    """Undoes what a block does to variables where a condition holds.

    And, where it runs eagerly, to what metrics keep in Python.

    Args:
        condition: Scalar of bool.
        variables: `tf.Variable`s or Keras's.
        metrics: The model's.
    """
    unique = {id(variable): variable for variable in variables}
    before = [tf.convert_to_tensor(variable) for variable in unique.values()]
    is_undone = tf.executing_eagerly() and bool(condition)
    with python_states_kept(metrics if is_undone else ()):
        yield

    def undo() -> tf.Tensor:
        for variable, value in zip(unique.values(), before, strict=True):
            variable.assign(value)
        return tf.constant(True)

    tf.cond(condition, undo, lambda: tf.constant(False))


def _leaf_of_rows(data: Any) -> Any:
    """What has a row for each example: a target, or else what has as many as most.

    A batch may have other things besides, such as a graph or a table.
    """
    parts = [data]
    if isinstance(data, tuple) and len(data) in (2, 3):
        parts = [data[1], data]
    for part in parts:
        leaves = []
        for leaf in tf.nest.flatten(part):
            shape = None if leaf is None else tf.TensorShape(leaf.shape)
            if shape is not None and shape.rank != 0:
                leaves.append((leaf, None if shape.rank is None else shape[0]))
        counts = Counter(count for _, count in leaves)
        if leaves:
            return max(leaves, key=lambda one: counts[one[1]])[0]
    return None


def _sample_weights(data: Any) -> list[Any]:
    if not isinstance(data, tuple) or len(data) != 3:
        return []
    return [leaf for leaf in tf.nest.flatten(data[2]) if leaf is not None]


def _can_mark(weights: Any) -> bool:
    dense = isinstance(weights, tf.Tensor | tf.TensorSpec) and weights.dtype.is_floating
    return dense and weights.shape.rank != 0


def _real_rows(data: Any) -> tf.Tensor:
    """Which rows are no padding, of a batch that is weighted by row."""
    marks = list(map(_marks, _sample_weights(data)))
    padding = marks[0]
    for mark in marks[1:]:
        padding = tf.logical_and(padding, mark)
    return tf.logical_not(padding)


def _marks(weights: tf.Tensor) -> tf.Tensor:
    """Which rows of some sample weights are marked."""
    bits = tf.bitcast(weights, _INTEGERS[weights.dtype.size])
    marked = tf.logical_and(weights == 0, bits < 0)
    if weights.shape.rank == 1:
        return marked
    rows = [tf.shape(weights)[0], -1]
    first, no_weight = tf.reshape(marked, rows)[:, :1], tf.reshape(weights == 0, rows)
    # What `padded_batch` adds behind the marks is +0.0. No weight at all marks nothing.
    return tf.reduce_all(no_weight, 1) & tf.reduce_any(first, 1)


def _rows_where(leaf: Any, real: tf.Tensor) -> Any:
    if leaf is None:
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        return _sparse_rows_where(leaf, real)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.ragged.boolean_mask(leaf, real)
    # Most batches have none: those are not copied.
    kept = tf.cond(
        tf.reduce_all(real), lambda: leaf, lambda: tf.boolean_mask(leaf, real)
    )
    return tf.ensure_shape(kept, [None, *leaf.shape[1:]])


def _sparse_rows_where(leaf: tf.SparseTensor, real: tf.Tensor) -> tf.SparseTensor:
    kept = tf.sparse.retain(leaf, tf.gather(real, leaf.indices[:, 0]))
    new_rows = tf.cumsum(tf.cast(real, tf.int64), exclusive=True)
    rows = tf.gather(new_rows, kept.indices[:, :1])
    count = tf.math.count_nonzero(real, keepdims=True)
    return tf.SparseTensor(
        tf.concat([rows, kept.indices[:, 1:]], 1),
        kept.values,
        tf.concat([count, leaf.dense_shape[1:]], 0),
    )


def _extended(leaf: Any, missing: tf.Tensor) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        more = tf.pad(
            tf.cast(missing, tf.int64)[None], [[0, tf.size(leaf.dense_shape) - 1]]
        )
        return tf.SparseTensor(leaf.indices, leaf.values, leaf.dense_shape + more)
    if isinstance(leaf, tf.RaggedTensor):
        splits = tf.concat(
            [leaf.row_splits, tf.repeat(leaf.row_splits[-1:], missing)], 0
        )
        return leaf.from_row_splits(leaf.values, splits, validate=False)
    if leaf is None or not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return leaf
    # Returns its input where there is nothing to add.
    return tf.pad(leaf, [[0, missing], *[[0, 0]] * (leaf.shape.rank - 1)])
