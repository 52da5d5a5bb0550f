"""The order in which a traced step computes its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ring_keras.optimizers.backward_order import backward_order
from ring_keras.optimizers.gradient_values import Gradient


def order_of(
    variables: Sequence[tf.Variable],
    forward: Callable[[tf.Tensor], tf.Tensor],
    change: Callable[[Gradient], Gradient] = lambda gradient: gradient,
) -> list[int]:
    found: list[list[int]] = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x))
        gradients = [change(g) for g in tape.gradient(loss, variables)]
        found.append(backward_order(gradients))
        return loss

    step.get_concrete_function(tf.TensorSpec([4, 8]))
    return found[0]


def weights(count: int) -> list[tf.Variable]:
    return [tf.Variable(tf.ones([8, 8])) for _ in range(count)]


def chain(variables: Sequence[tf.Variable], uses: Sequence[int]) -> Callable:
    def forward(x: tf.Tensor) -> tf.Tensor:
        for use in uses:
            x = tf.nn.relu(x @ variables[use])
        return x

    return forward


def test_the_layer_that_is_used_last_is_first() -> None:
    variables = weights(4)
    assert order_of(variables, chain(variables, [0, 1, 2, 3])) == [3, 2, 1, 0]
    assert order_of(variables, chain(variables, [2, 0, 3, 1])) == [1, 3, 0, 2]


def test_what_is_done_to_all_gradients_changes_nothing() -> None:
    variables = weights(3)
    forward = chain(variables, [1, 2, 0])
    assert order_of(variables, forward, lambda g: tf.clip_by_norm(g, 1.0)) == [0, 2, 1]


def test_a_weight_of_two_layers_waits_for_the_earlier_one() -> None:
    variables = weights(3)
    assert order_of(variables, chain(variables, [2, 0, 1, 2])) == [1, 0, 2]


def test_rows_of_a_table_that_is_used_first_are_last() -> None:
    table, *others = weights(3)

    def forward(x: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(table, tf.cast(x[:, 0], tf.int32) % 8)
        return chain(others, [0, 1])(rows)

    assert order_of([table, *others], forward) == [2, 1, 0]
    assert order_of([*others, table], forward) == [1, 0, 2]


def test_those_that_are_absent_or_eager_are_in_reverse() -> None:
    variables = weights(2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variables[0] * variables[1])
    gradients = tape.gradient(loss, variables)
    assert backward_order([*gradients, None]) == [2, 1, 0]


def test_loops_that_lead_back_end() -> None:
    with tf.Graph().as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            x = tf.compat.v1.placeholder(tf.float32, [])
            looped = tf.while_loop(lambda y: y < 10.0, lambda y: y * 2.0, [x])
            assert backward_order([looped[0], x]) == [1, 0]
        finally:
            tf.compat.v1.enable_control_flow_v2()
