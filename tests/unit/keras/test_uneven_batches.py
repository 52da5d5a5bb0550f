"""Padding rows and empty batches leave no trace in a step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from ring_keras.training import uneven_batches


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("as_graph", [False, True])
def test_rows_of_negative_zero_are_removed(dtype, as_graph):
    function = uneven_batches.without_padding
    if as_graph:
        function = tf.function(function)
    x = {"a": tf.range(5), "b": [tf.reshape(tf.range(10), (5, 2)), None]}
    weights = tf.constant([0.0, -0.0, 1.0, -1.0, -0.0], dtype)

    kept, y, kept_weights = function((x, tf.range(5), weights))

    assert y.numpy().tolist() == [0, 2, 3]
    assert kept["a"].numpy().tolist() == [0, 2, 3]
    assert kept["b"][0].numpy().tolist() == [[0, 1], [4, 5], [6, 7]]
    assert kept["b"][1] is None
    assert kept_weights.dtype == dtype
    assert tf.cast(kept_weights, tf.float32).numpy().tolist() == [0.0, 1.0, -1.0]


def test_ragged_rows_are_removed():
    x = tf.ragged.constant([[1], [2, 3], []])
    kept, *_ = uneven_batches.without_padding(
        (x, tf.range(3), tf.constant([-0.0, 1.0, 1.0]))
    )
    assert kept.to_list() == [[2, 3], []]


def test_sparse_rows_are_removed():
    x = tf.sparse.from_dense([[0, 1], [2, 0], [0, 0], [3, 4]])
    function = tf.function(uneven_batches.without_padding)
    kept, *_ = function((x, tf.range(4), tf.constant([1.0, -0.0, 1.0, 1.0])))
    assert tf.sparse.to_dense(kept).numpy().tolist() == [[0, 1], [0, 0], [3, 4]]


@pytest.mark.parametrize("as_graph", [False, True])
def test_weights_of_any_structure_and_shape_mark_rows(as_graph):
    """A row is padding if all of its weights say so."""
    function = uneven_batches.without_padding
    if as_graph:
        function = tf.function(function)
    weights = {
        "per_example": tf.constant([-0.0, -0.0, 1.0, -0.0]),
        # The last one was padded behind by `padded_batch`.
        "per_step": tf.constant([[-0.0, -0.0], [0.0, -0.0], [1.0, 1.0], [-0.0, 0.0]]),
        "none": None,
    }

    _, y, kept = function((tf.range(4), tf.range(4), weights))

    assert y.numpy().tolist() == [1, 2]
    assert kept["per_step"].numpy().tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert kept["none"] is None


def test_a_column_of_weights_marks_rows():
    batch = tf.range(2), tf.range(2), tf.constant([[1.0], [-0.0]])
    assert uneven_batches.without_padding(batch)[1].numpy().tolist() == [0]


def test_empty_ragged_and_sparse_batches_get_an_empty_row():
    ragged = tf.ragged.constant([[1]])[:0]
    nested = tf.ragged.constant([[[1]]])[:0]
    sparse = tf.sparse.from_dense([[1, 2]])
    sparse = tf.sparse.slice(sparse, [0, 0], [0, 2])

    batch = ragged, nested, sparse, tf.ones([0])
    row, nested_row, sparse_row, zero = uneven_batches.at_least_one_row(batch)

    assert row.to_list() == [[]]
    assert nested_row.to_list() == [[]]
    assert tf.sparse.to_dense(sparse_row).numpy().tolist() == [[0, 0]]
    assert zero.numpy().tolist() == [0.0]


@pytest.mark.parametrize(
    "batch",
    [
        tf.range(3),
        (tf.range(3), tf.range(3)),
        (tf.range(3), tf.range(3), tf.zeros([3], tf.int32)),
        (tf.range(3), tf.range(3), {"a": -tf.zeros([3]), "b": tf.range(3)}),
        (tf.range(3), tf.range(3), None),
    ],
)
def test_data_without_a_weight_per_row_stay_as_they_are(batch):
    assert uneven_batches.without_padding(batch) is batch


@pytest.mark.parametrize("as_graph", [False, True])
def test_an_empty_batch_gets_a_row_of_zeros(as_graph):
    function = uneven_batches.at_least_one_row
    if as_graph:
        function = tf.function(function)
    x, y = function((tf.ones([0, 3]), tf.zeros([0], tf.string)))

    assert x.numpy().tolist() == [[0.0, 0.0, 0.0]]
    assert y.numpy().tolist() == [b""]


def test_a_batch_with_rows_stays_as_it_is():
    x, y = uneven_batches.at_least_one_row((tf.ones([2, 3]), None))

    assert x.numpy().tolist() == np.ones((2, 3)).tolist()
    assert y is None


@pytest.mark.parametrize("as_graph", [False, True])
@pytest.mark.parametrize("undo", [False, True])
def test_what_a_block_does_is_undone(as_graph, undo):
    numbers = tf.Variable([1.0, 2.0])
    flag = tf.Variable(False)

    def step(condition):
        with uneven_batches.undone_if(condition, [numbers, flag, numbers]):
            numbers.assign_add([1.0, 1.0])
            flag.assign(True)
            return tf.identity(numbers)

    inside = (tf.function(step) if as_graph else step)(tf.constant(undo))

    assert inside.numpy().tolist() == [2.0, 3.0]
    assert numbers.numpy().tolist() == ([1.0, 2.0] if undo else [2.0, 3.0])
    assert bool(flag) != undo


def test_examples_of_all_kinds_are_counted():
    ragged = tf.ragged.constant([[1], [2, 3]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 1], [1, 1]])
    counts = [uneven_batches.example_count(batch) for batch in (ragged, sparse)]
    assert [float(count) for count in counts] == [2.0, 3.0]


@pytest.mark.parametrize("shape", [(5,), (None, 2), None])
def test_rows_are_counted_whatever_is_known_of_the_shape(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def count(leaf):
        return uneven_batches.example_count((None, tf.constant(0.0), leaf))

    assert int(count(tf.zeros([5, 2] if shape != (5,) else [5]))) == 5


def test_what_has_no_row_for_each_example_does_not_count():
    @tf.function(
        input_signature=[
            {"adjacency": tf.TensorSpec([3, 3]), "features": tf.TensorSpec([None, 2])},
            tf.TensorSpec([None]),
        ]
    )
    def count(x, y):
        assert uneven_batches.is_of_unknown_length((x, y))
        return uneven_batches.example_count((x, y)), uneven_batches.example_count((x,))

    x = {"adjacency": tf.zeros([3, 3]), "features": tf.zeros([5, 2])}
    of_pair, of_input = count(x, tf.zeros([5]))
    assert (int(of_pair), int(of_input)) == (5, 3)
    assert int(uneven_batches.example_count((x, tf.zeros([5])))) == 5
    # A batch of three graphs, with a place in one for each of five nodes.
    graphs = {"nodes": tf.zeros([5, 2]), "graph_of_node": tf.zeros([5])}
    assert int(uneven_batches.example_count((graphs, tf.zeros([3])))) == 3


def test_scalars_count_nothing():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def count_one(leaf):
        return uneven_batches.example_count(leaf)

    assert uneven_batches.example_count((tf.constant(1.0), None)) is None
    assert int(count_one(tf.constant(1.0))) == 1
