"""What collectives are called where nothing orders them."""

from __future__ import annotations

import tensorflow as tf

from ring_keras.ops.request_names import (
    MOST_NAMES,
    EagerNames,
    to_request_name,
    unique_in_graph,
)


def test_calls_that_are_ordered_share_a_name() -> None:
    seen = []

    @tf.function
    def traced(x: tf.Tensor) -> tf.Tensor:
        seen.append(to_request_name(None, "allreduce", [x]))
        return tf.cond(x > 0, lambda: branch(x), lambda: x)

    def branch(x: tf.Tensor) -> tf.Tensor:
        seen.append(to_request_name(None, "allreduce", [x]))
        return x

    traced(tf.constant(1.0))
    seen.append(to_request_name(None, "allreduce", [tf.constant(1.0)]))
    assert seen == ["allreduce"] * 3
    assert to_request_name("mine", "allreduce", []) == "mine"
    assert unique_in_graph("mine") == "mine"


def test_a_graph_names_them_after_their_tensors() -> None:
    with tf.Graph().as_default():
        with tf.name_scope("scope"):
            x = tf.constant(1.0, name="x")
        y = tf.constant(2.0, name="y")
        slices = tf.IndexedSlices(x, y)
        assert to_request_name(None, "allreduce", [x]) == "allreduce_scope_x_0"
        assert to_request_name(None, "allreduce", [x]) == "allreduce_scope_x_0_1"
        assert to_request_name(None, "group", [x, x, y]) == "group_scope_x_0_y_0"
        assert to_request_name(None, "gather", [slices]) == "gather_scope_x_0"
        assert to_request_name(None, "barrier", []) == "barrier"
        assert [to_request_name("a", "f", [x]) for _ in range(3)] == ["a", "a_1", "a_2"]
        assert to_request_name("a_1", "f", [x]) == "a_1_1"
    with tf.Graph().as_default():
        assert to_request_name("a", "f", []) == "a"


def test_branches_share_the_names_of_their_graph() -> None:
    names = []

    def branch(x: tf.Tensor) -> tf.Tensor:
        names.append(to_request_name("a", "f", [x]))
        return x

    with tf.Graph().as_default():
        x = tf.constant(1.0)
        branch(x)
        tf.cond(x > 0, lambda: branch(x), lambda: branch(x))
    assert names == ["a", "a_1", "a_2"]


def test_many_eager_names_are_told_of_once() -> None:
    names = EagerNames()
    often = [f"gradient{i}" for i in range(MOST_NAMES - 1)]
    assert not any(names.note(name) for _ in range(3) for name in often)
    assert names.note("loss_1")
    assert not any(names.note(f"loss_{i}") for i in range(2 * MOST_NAMES))
