"""Functions, conditions and loops with collectives begin in the order of calls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras import _libraries

needs_xla_kernels = pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)


def late_on(rank: int, x: tf.Tensor) -> tf.Tensor:
    """The same; on one rank later than what does not wait for it."""

    def wait(value: Any) -> Any:
        if ring.rank() == rank:
            time.sleep(0.3)
        return value

    same = tf.numpy_function(wait, [x], x.dtype, stateful=False)
    same.set_shape(x.shape)
    return same


def late_gradient_on(rank: int, x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def same(x: tf.Tensor) -> Any:
        return tf.identity(x), lambda upstream: late_on(rank, upstream)

    return same(x)


class Calls:
    """Sums in calls that use variables of their own, each late on another rank."""

    def __init__(self) -> None:
        self.one, self.other = tf.Variable(1.0), tf.Variable(1.0)
        self.true = tf.constant(True)

    def total_late_on(self, rank: int, x: tf.Tensor) -> tf.Tensor:
        variable = self.one if rank == 0 else self.other
        return ring.allreduce(late_on(rank, x) * variable, "sum")

    def condition(self, rank: int, x: tf.Tensor) -> tf.Tensor:
        return tf.cond(self.true, lambda: self.total_late_on(rank, x), lambda: x)

    def loop(self, rank: int, x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < 1,
            lambda i, _: (i + 1, self.total_late_on(rank, x)),
            (tf.constant(0), x),
        )[1]

    def function(self, rank: int, x: tf.Tensor) -> tf.Tensor:
        return tf.function(self.total_late_on, autograph=False)(rank, x)

    def alone(self, rank: int, x: tf.Tensor) -> tf.Tensor:
        return ring.allreduce(late_on(rank, x), "sum")


def check(first: str, second: str) -> None:
    calls = Calls()

    @tf.function(autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        return getattr(calls, first)(0, x), getattr(calls, second)(1, y)

    total, other = step(tf.ones([2]), tf.fill([2], 100.0))
    size = ring.size()
    np.testing.assert_array_equal([total, other], [[size] * 2, [100 * size] * 2])


@pytest.mark.parametrize("first", ["condition", "loop", "function"])
@pytest.mark.parametrize("second", ["alone", "condition"])
def test_calls_keep_their_order(rank_pool: RankPools, first: str, second: str) -> None:
    rank_pool(2).run(check, args=[first, second])


def check_gradient() -> None:
    """The gradient of a function that calls another one twice."""

    @tf.function(autograph=False)
    def total(x: tf.Tensor) -> tf.Tensor:
        return ring.allreduce(x, "sum")

    def both() -> Callable[..., Any]:
        return tf.function(
            lambda x, y: (
                late_gradient_on(0, total(x)),
                late_gradient_on(1, total(y)),
            ),
            autograph=False,
        )

    # The second finds the gradient of the inner one as the first has made it.
    for function in (both(), both()):
        x, y = tf.ones([2]), tf.ones([2])
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            one, other = function(x, y)
            loss = tf.reduce_sum(one) + 100 * tf.reduce_sum(other)
        size = ring.size()
        np.testing.assert_array_equal(
            tape.gradient(loss, [x, y]), [[size] * 2, [100 * size] * 2]
        )


def test_calls_in_a_gradient_keep_their_order(rank_pool: RankPools) -> None:
    rank_pool(2).run(check_gradient)


def long_way_on(rank: int, x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
    """The same; XLA knows on one rank that it has to compute something before."""
    if ring.rank() != rank:
        return x
    product = matrix
    for _ in range(12):
        product = tf.tanh(product @ matrix)
    return x + 0 * tf.reduce_sum(product)


def total_of(kind: str, x: tf.Tensor) -> tf.Tensor:
    if kind == "broadcast":
        return ring.broadcast(x, 0) * ring.size()
    if kind == "reducescatter":
        part = ring.reducescatter(tf.concat([x] * ring.size(), 0), "sum")
        return tf.ensure_shape(part, x.shape)
    return ring.allreduce(x, "sum")


def check_compiled(kind: str, branch: str, concrete: bool) -> None:
    true = tf.constant(True)

    def inside(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
        def total() -> tf.Tensor:
            return total_of(kind, long_way_on(0, x, matrix))

        if branch == "condition":
            return tf.cond(true, total, lambda: x)
        return tf.while_loop(
            lambda i, _: i < 1, lambda i, _: (i + 1, total()), (tf.constant(0), x)
        )[1]

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor, y: tf.Tensor, matrix: tf.Tensor) -> Any:
        one = inside(x, matrix)
        return one, total_of(kind, long_way_on(1, y, matrix))

    # XLA runs small programs one call after the other.
    matrix = tf.fill([500, 500], 0.001)
    arguments = (tf.ones([2]), tf.fill([2], 100.0), matrix)
    got = (step.get_concrete_function(*arguments) if concrete else step)(*arguments)
    size = ring.size()
    np.testing.assert_array_equal(got, [[size] * 2, [100 * size] * 2])


@needs_xla_kernels
@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "reducescatter"])
@pytest.mark.parametrize("branch", ["condition", "loop"])
@pytest.mark.parametrize("concrete", [False, True], ids=["called", "concrete"])
def test_compiled_branches_keep_their_place(
    rank_pool: RankPools, kind: str, branch: str, concrete: bool
) -> None:
    rank_pool(2).run(check_compiled, args=[kind, branch, concrete])


def unordered_collectives() -> list[str]:
    one = ring.add_process_set([ring.size() - 1])

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> Any:
        sums = [ring.allreduce(x, "sum"), ring.allgather(x), ring.broadcast(x, 0)]
        if one.included():
            sums.append(ring.allreduce(x, "sum", process_set=one))
        ring.barrier()
        return sums

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    ring.remove_process_set(one)
    collectives = [
        operation
        for operation in graph.get_operations()
        if operation.type.startswith("RingKeras")
    ]
    return [
        after.name
        for before, after in itertools.pairwise(collectives)
        if before not in after.control_inputs
    ]


@needs_xla_kernels
def test_concrete_functions_for_xla_have_one_order(rank_pool: RankPools) -> None:
    for unordered in rank_pool(2).run(unordered_collectives):
        assert unordered == []


def name_of_gradients() -> list[str]:
    true = tf.constant(True)

    @tf.function(jit_compile=True, autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        total = 0.0
        with tf.GradientTape() as tape:
            tape.watch(x)
            for _ in range(2):
                total += tf.cond(true, lambda: ring.allreduce(x, "sum"), lambda: x)
            total += ring.allreduce(x, "sum")
        return tape.gradient(total, x)

    graph = step.get_concrete_function(tf.TensorSpec([2])).graph
    function_def = graph.as_graph_def()
    nodes = [*function_def.node]
    for function in function_def.library.function:
        nodes += function.node_def
    names = [
        node.attr["request_name"].s.decode()
        for node in nodes
        if node.op == "RingKerasAllreduce"
    ]
    return sorted({name for name in names if "gradient" in name})


@needs_xla_kernels
def test_gradients_of_compiled_branches_have_names_of_their_own(
    rank_pool: RankPools,
) -> None:
    """They have no place among the others, so they must not meet them."""
    for names in rank_pool(2).run(name_of_gradients):
        assert names == [
            "allreduce/gradient",
            "allreduce/gradient/branch",
            "allreduce/gradient/branch_1",
        ]


def what_a_call_waits_for() -> list[str]:
    """Of a divided state, whose updates TensorFlow orders by their variables."""
    variables = [
        [keras.Variable(np.ones((4, 3), np.float32)) for _ in range(2)]
        for _ in range(2)
    ]
    optimizers = [
        ring.DistributedOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), shard_state=True
        )
        for _ in range(2)
    ]
    for optimizer, trained in zip(optimizers, variables, strict=True):
        optimizer.build(trained)

    @tf.function(autograph=False)
    def other(gradient: tf.Tensor) -> tf.Tensor:
        optimizers[1].apply([gradient] * 2, variables[1])
        return gradient

    @tf.function(autograph=False)
    def step(gradient: tf.Tensor) -> tf.Tensor:
        optimizers[0].apply([gradient] * 2, variables[0])
        return other(gradient)

    step(tf.ones((4, 3)))
    graph = step.get_concrete_function(tf.TensorSpec((4, 3))).graph
    (call,) = (op for op in graph.get_operations() if "PartitionedCall" in op.type)
    return sorted(op.type for op in call.control_inputs)


def test_a_call_waits_for_divided_updates(rank_pool: RankPools) -> None:
    for types in rank_pool(2).run(what_a_call_waits_for):
        assert "RingKerasShareVariables" in types


def loop_while_all_go_on() -> float:
    """A loop whose condition asks all ranks."""

    @tf.function(jit_compile=True, autograph=False)
    def halved(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda x: ring.allreduce(x, "max") > 1.0,
            lambda x: ring.allreduce(x, "sum") / 4.0,
            (x,),
        )[0]

    return float(halved(tf.constant(8.0 * (ring.rank() + 1))))


@needs_xla_kernels
def test_a_collective_in_the_condition_of_a_loop(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(loop_while_all_go_on) == [0.75, 0.75]


def gradients_in_a_gradient() -> list[float]:
    @tf.custom_gradient
    def same(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.gradients(ring.allreduce(x * x, "sum"), x, upstream)[0]

        return tf.identity(x), gradient

    step = tf.function(lambda x: same(x), autograph=False)
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = step(x)
    result: list[float] = tape.gradient(y, x).numpy().tolist()
    return result


def test_gradients_that_a_gradient_takes(rank_pool: RankPools) -> None:
    assert rank_pool(2).run(gradients_in_a_gradient) == [[4.0, 4.0]] * 2
