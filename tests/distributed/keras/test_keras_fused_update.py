"""Updates by one op: what Keras computes, with less work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras import _libraries

optimizers = keras.optimizers
MAKERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "descent": lambda: optimizers.SGD(0.1),
    "scaled": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "added_up": lambda: optimizers.SGD(
        0.1, momentum=0.9, nesterov=True, gradient_accumulation_steps=3
    ),
    "loss_scale_factor": lambda: optimizers.SGD(
        0.1, momentum=0.9, loss_scale_factor=3.0
    ),
    "numpy": lambda: optimizers.Adam(0.01, beta_2=np.float64(0.95)),
    "momentum": lambda: optimizers.SGD(
        optimizers.schedules.CosineDecay(0.1, 9), momentum=0.9, clipnorm=0.5
    ),
    "nesterov": lambda: optimizers.SGD(
        0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam": lambda: optimizers.Adam(0.01, beta_1=0.8, epsilon=1e-6),
    "adamw": lambda: optimizers.AdamW(
        optimizers.schedules.ExponentialDecay(0.05, 2, 0.8), weight_decay=0.1
    ),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "averages": lambda: optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01)),
}
SGD = {
    name for name, make in MAKERS.items() if isinstance(make(), keras.optimizers.SGD)
}
OPS = {"RingKerasUpdateByAdam", "RingKerasUpdateByMomentum"}


def layers() -> list[keras.layers.Layer]:
    """Variables of several sizes, one of a single element."""
    return [
        keras.layers.Dense(37, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ]


class Own(keras.optimizers.Adam):
    """What its update is, nobody but its author knows."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_sub(variable, keras.ops.sign(gradient) * 0.125)


def ops_of(function: Any) -> set[str]:
    """Ours in what has been traced, in conditions too."""
    graph = function.get_concrete_function().graph.as_graph_def()
    functions = [one.node_def for one in graph.library.function]
    return {node.op for nodes in (graph.node, *functions) for node in nodes} & OPS


def trained(make: Callable[[], Any], fused: bool, **options: Any) -> list[np.ndarray]:
    """All that training changes."""
    model = training.assemble(3, layers, None)
    optimizer = ring.DistributedOptimizer(make(), fused_update=fused)
    model.compile(optimizer, loss="binary_crossentropy", **options)
    x = np.random.default_rng(ring.rank()).normal(size=(32, 6)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return [np.array(one) for one in (*model.weights, *optimizer.variables)]


def compare(names: list[str], floats: str, options: dict[str, Any]) -> None:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64" if floats == "float64" else "float32")
    keras.config.set_dtype_policy(floats)
    try:
        for name in names:
            ours = trained(MAKERS[name], True, **options)
            keras_own = trained(MAKERS[name], False, **options)
            assert len(ours) == len(keras_own)
            # In a graph TensorFlow multiplies a gradient's factors and the rate in
            # another order, where it sees them; Adam does not begin with a product.
            is_exact = "run_eagerly" in options or name not in SGD
            limit = {"rtol": 0, "atol": 0} if is_exact else {"rtol": 1e-4, "atol": 1e-6}
            for got, expected in zip(ours, keras_own, strict=True):
                np.testing.assert_allclose(got, expected, err_msg=name, **limit)
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


@pytest.mark.parametrize(
    ("size", "names", "floats", "options"),
    [
        (2, ["momentum", "adam"], "float32", {"jit_compile": False}),
        pytest.param(
            *(2, [*MAKERS], "float32", {"jit_compile": False}), marks=pytest.mark.slow
        ),
        (1, ["loss_scale_factor"], "float32", {"jit_compile": False}),
        pytest.param(
            *(1, ["nesterov", "adam"], "float64", {"jit_compile": False}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(1, ["momentum", "adamw"], "mixed_bfloat16", {"jit_compile": False}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(1, ["nesterov", "adamw"], "float32", {"run_eagerly": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(1, ["adam"], "float32", {"jit_compile": True}), marks=pytest.mark.slow
        ),
    ],
    ids=["graph", "all", "factors", "float64", "mixed", "eager", "compiled"],
)
def test_it_is_the_update_of_keras(
    rank_pool: RankPools,
    size: int,
    names: list[str],
    floats: str,
    options: dict[str, Any],
) -> None:
    rank_pool(size).run(compare, args=(names, floats, options))


def trace_all() -> None:
    for make, expected in (
        (MAKERS["descent"], None),
        (MAKERS["momentum"], "RingKerasUpdateByMomentum"),
        (MAKERS["accumulation"], "RingKerasUpdateByAdam"),
        (MAKERS["loss_scaled"], "RingKerasUpdateByAdam"),
        (MAKERS["amsgrad"], None),
        (MAKERS["numpy"], None),
        (Own, None),
    ):
        for compiled in (False, True):
            step = traced(make(), compiled)
            # XLA makes one loop of Keras's ops, and has no kernel of ours.
            names = {expected} if expected and not compiled else set()
            assert ops_of(step) == names, (expected, compiled)


def traced(optimizer: Any, compiled: bool) -> Any:
    weights = [keras.Variable(np.ones(3, "float32")), keras.Variable([1.0, 2.0])]
    optimizer = ring.DistributedOptimizer(optimizer)
    optimizer.build(weights)

    @tf.function(jit_compile=compiled)
    def step() -> None:
        gradients = [tf.ones_like(weight.value) for weight in weights]
        optimizer.apply(gradients, weights)

    step()
    return step


def test_one_op_updates_a_variable(rank_pool: RankPools) -> None:
    rank_pool(1).run(trace_all)


def update_otherwise() -> None:
    start = np.array([1.0, 2.0, 3.0], "float32")
    gradient = np.array([0.5, -0.5, 0.0], "float32")

    def once(optimizer: Any, gradient: Any) -> np.ndarray:
        weight = keras.Variable(start)
        optimizer = ring.DistributedOptimizer(optimizer)
        optimizer.apply([gradient], [weight])
        return weight.numpy()

    moved = once(Own(), tf.constant(gradient))
    np.testing.assert_array_equal(moved, [0.875, 2.125, 3.0])

    replaced = keras.optimizers.SGD(1.0)
    replaced.update_step = lambda gradient, variable, rate: variable.assign_add(
        gradient
    )
    moved = once(replaced, tf.constant(gradient))
    np.testing.assert_array_equal(moved, start + gradient)

    rows = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), tf.constant([3]))
    moved = once(keras.optimizers.SGD(0.5), rows)
    np.testing.assert_array_equal(moved, [1.0, 1.0, 3.0])

    moved = once(keras.optimizers.SGD(0.5, momentum=0.9), tf.constant(1.0))
    np.testing.assert_array_equal(moved, [0.5, 1.5, 2.5])

    rates = keras.optimizers.SGD(lambda: tf.constant([0.5, 1.0, 1.5]), momentum=0.9)
    moved = once(rates, tf.ones(3))
    np.testing.assert_array_equal(moved, [0.5, 1.0, 1.5])


def test_who_updates_otherwise_does_so(rank_pool: RankPools) -> None:
    rank_pool(1).run(update_otherwise)


def trace_sizes() -> None:
    counts = (3, 20_000, 16_384, 16_385, 1)
    weights = [keras.Variable(np.ones(count, "float32")) for count in counts]
    weights.append(keras.Variable(np.ones(3, "float64")))
    optimizer = ring.DistributedOptimizer(MAKERS["momentum"]())
    optimizer.build(weights)

    @tf.function
    def step() -> None:
        optimizer.apply([tf.ones_like(weight.value) for weight in weights], weights)

    step()
    graph = step.get_concrete_function().graph
    sizes = [
        [
            int(gradient.shape[0])
            for gradient in op.inputs[-len(op.get_attr("begins")) :]
        ]
        for op in graph.get_operations()
        if op.type in OPS
    ]
    # Small ones of a type by one op, which another thread need not help.
    assert sorted(sizes) == [[3], [3, 16_384, 1], [16_385], [20_000]]


def test_one_op_updates_all_small_variables(rank_pool: RankPools) -> None:
    rank_pool(1).run(trace_sizes)


def update_twice() -> None:
    weight = keras.Variable(np.ones(3, "float32"))
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9))
    optimizer.build([weight])

    optimizer.apply([tf.ones(3), 2 * tf.ones(3)], [weight, weight])

    # By 0.5, then by 0.9 * 0.5 + 1.
    np.testing.assert_allclose(weight.numpy(), 1 - 0.5 - 1.45, rtol=1e-6)


def test_a_variable_may_be_given_twice(rank_pool: RankPools) -> None:
    rank_pool(1).run(update_twice)


def update(
    variables: list[tf.Variable],
    momenta: list[tf.Variable],
    gradients: list[Any],
    decay: Any = 0.9,
    begins: list[int] | None = None,
) -> None:
    _libraries.ops().ring_keras_update_by_momentum(
        variables=[variable.handle for variable in variables],
        momenta=[momentum.handle for momentum in momenta],
        rate=0.5,
        decay=decay,
        gradients=gradients,
        begins=begins or [-1] * len(variables),
        nesterov=False,
    )


def test_who_has_read_a_variable_keeps_its_value() -> None:
    variable, momentum = tf.Variable([1.0, 2.0]), tf.Variable([0.0, 0.0])
    read = tf.identity(variable.read_value())

    update([variable], [momentum], [variable.read_value()])

    np.testing.assert_array_equal(read, [1.0, 2.0])
    np.testing.assert_array_equal(variable, [0.5, 1.0])
    np.testing.assert_array_equal(momentum, [-0.5, -1.0])


def test_pieces_beside_wholes() -> None:
    variables = [tf.Variable([1.0] * 5), tf.Variable([2.0, 2.0])]
    momenta = [tf.Variable([0.0] * 2), tf.Variable([0.0] * 2)]

    update(variables, momenta, [[2.0, 4.0], [1.0, 1.0]], begins=[3, -1])

    np.testing.assert_array_equal(variables[0], [1.0, 1.0, 1.0, 0.0, -1.0])
    np.testing.assert_array_equal(variables[1], [1.5, 1.5])


@pytest.mark.parametrize(
    ("second", "decay", "gradient", "message"),
    [
        (None, 0.9, [1.0, 2.0], "given twice"),
        ([0.0], 0.9, [1.0, 2.0], r"float\[2\] was given for a variable of float\[1\]"),
        ([0.0] * 2, 0.9, [1.0], r"float\[1\] was given for a variable of float\[2\]"),
        (
            [0.0] * 2,
            [0.9],
            [1.0] * 2,
            r"input 5 must be a scalar, and is of shape \[1\]",
        ),
    ],
    ids=["twice", "momentum", "gradient", "decay"],
)
def test_what_does_not_fit_is_refused(
    second: list[float] | None, decay: Any, gradient: list[float], message: str
) -> None:
    first, variable = tf.Variable([1.0]), tf.Variable([1.0, 2.0])
    momentum = variable if second is None else tf.Variable(second)

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update(
            [first, variable], [tf.Variable([0.0]), momentum], [[1.0], gradient], decay
        )

    np.testing.assert_array_equal(first, [1.0])  # None or all.


def test_as_many_places_as_variables() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="`begins` of 2"):
        update([tf.Variable([1.0])], [tf.Variable([0.0])], [[1.0]], begins=[-1, -1])
