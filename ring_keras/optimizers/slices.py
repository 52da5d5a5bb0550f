"""Pieces of variables as variables, for as long as an optimizer changes them.

Several ranks may have pieces of what an optimizer keeps for one variable. Each gives
Keras's methods its piece of the variable, and of the gradient. They change an element
by that element's gradient and state alone, so it comes to the same bits.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.shards import Piece, Shard

__all__ = ["Slice", "Slices", "taken"]


class Slice(NamedTuple):
    """This rank's piece of a variable.

    Attributes:
        whole: The variable.
        variable: Has had the piece's values when it was loaded.
    """

    whole: Any
    variable: Any


class Slices:
    """Those of one optimizer.

    Args:
        optimizer: Whose methods are to take a slice for the variable that it is of.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._slices: dict[Hashable, Slice] = {}
        # By a slice: TensorFlow's variable that it is of, in whose name Keras looks for
        # what is left out of weight decay.
        self._wholes: dict[Hashable, Any] = {}

    def install(self) -> None:
        """Has the optimizer find the state of a slice, and who has no weight decay."""
        for name in (internals.VARIABLE_INDEX, internals.USE_WEIGHT_DECAY):
            internals.replace(self._optimizer, name, self._of_whole(name))

    def _of_whole(self, name: str) -> Callable[[Any], Any]:
        method: Callable[[Any, Any], Any] = getattr(type(self._optimizer), name)

        def call(variable: Any) -> Any:
            key = internals.variable_key(variable)
            return method(self._optimizer, self._wholes.get(key, variable))

        return call

    def forget(self) -> None:
        """Ranks have other pieces now."""
        self._slices.clear()
        self._wholes.clear()

    def load(self, variable: Any, shard: Shard, piece: Piece) -> Slice:
        """The slice of a variable, with the values that the variable has now.

        Args:
            variable: Of the model.
            shard: What its pieces are.
            piece: This rank's.
        """
        plain = internals.tensorflow_variable(variable)
        key = internals.variable_key(variable)
        if key not in self._slices:
            # Also in the middle of a trace, which may make no variables of its own.
            with tf.init_scope(), tf.device(plain.device):
                own = tf.Variable(
                    tf.zeros(shard.shape_of(piece), variable.dtype), trainable=False
                )
            self._slices[key] = Slice(variable, own)
            self._wholes[internals.variable_key(own)] = plain
        found = self._slices[key]
        found.variable.assign(taken(plain, shard, piece))
        return found


def taken(value: Any, shard: Shard, piece: Piece) -> Any:
    """A piece of a tensor, or of a variable's value, or of a gradient."""
    if isinstance(value, tf.IndexedSlices):
        return _taken_sparse(value, shard, piece)
    rows = shard.rows_of(piece)
    if rows is not None:
        return value[rows]
    return tf.reshape(value, [-1])[piece.begin : piece.end]


def _taken_sparse(
    gradient: tf.IndexedSlices, shard: Shard, piece: Piece
) -> tf.IndexedSlices:
    """Not made dense: Keras adds the squares of a row that is there twice."""
    rows = shard.rows_of(piece)
    values, indices = gradient.values, gradient.indices
    if rows is None:  # Elements in place of rows.
        row = math.prod(shard.shape[1:])
        indices = tf.cast(indices, tf.int64)
        columns = tf.range(row, dtype=tf.int64)
        indices = tf.reshape(indices[:, None] * row + columns, [-1])
        values = tf.reshape(values, [-1])
        rows = slice(piece.begin, piece.end)
    is_own = (indices >= rows.start) & (indices < rows.stop)
    if is_for_xla(tf.compat.v1.get_default_graph()):  # Has no shape that is not known.
        indices = tf.where(is_own, indices - rows.start, 0)
        shape = [-1, *[1] * (values.shape.rank - 1)]
        values = tf.where(tf.reshape(is_own, shape), values, tf.zeros_like(values))
    else:
        indices = tf.boolean_mask(indices, is_own) - rows.start
        values = tf.boolean_mask(values, is_own)
    its_shape = tf.constant(shard.shape_of(piece), indices.dtype)
    return tf.IndexedSlices(values, indices, its_shape)
