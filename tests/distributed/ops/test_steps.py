"""Collectives of one step meet those of the same step only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from support import RankPool

import ring_keras as ring
from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait
from ring_keras.ops.step import one_step


def step_of(names: list[str], mode: str) -> Callable[[float], list[float]]:
    """Reduces a number under each of the names, in one step."""

    def step(value: tf.Tensor) -> list[tf.Tensor]:
        with one_step():
            started = [allreduce_start([value], "sum", name=name) for name in names]
            return [allreduce_wait(pending)[0] for pending in started]

    function = step
    if mode != "eager":
        function = tf.function(step, jit_compile=mode == "xla", autograph=False)

    def run(value: float) -> list[float]:
        with translated():
            return [float(x) for x in function(tf.constant(float(value)))]

    return run


def rank_that_failed_in_the_middle(mode: str) -> str:
    """Rank 0 leaves a step after its first half; its caller goes on."""
    size = ring.size()
    names = [f"{mode}/first", f"{mode}/second"]
    whole, half = step_of(names, mode), step_of(names[:1], mode)
    for value in range(4):
        assert whole(value) == [size * value] * 2
    if ring.rank() == 0:
        assert half(5.0) == [size * 5.0]
        # In step 6 here, while the others wait in the second half of step 5.
    with pytest.raises(ring.RankMismatchError) as info:
        whole(6.0 if ring.rank() == 0 else 5.0)
    for value in range(7, 11):
        assert whole(value) == [size * value] * 2
    return str(info.value)


needs_xla_kernels = pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)


@pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("xla", marks=needs_xla_kernels)]
)
def test_a_rank_that_is_a_step_ahead_is_found(
    rank_pool: Callable[..., RankPool], mode: str
) -> None:
    messages = rank_pool(2).run(rank_that_failed_in_the_middle, args=[mode])

    assert messages[0] == messages[1]
    assert f"'{mode}/second': step differs across ranks" in messages[0]
    assert "rank 0 is in step" in messages[0] and "rank 1 in step" in messages[0]


def roles_of_traced_ops() -> list[str]:
    """How the collectives of a tape's reduction divide into steps."""
    dense = keras.Variable(tf.ones([4]))
    narrow = keras.Variable(tf.ones([4]), dtype="float16")
    table = keras.Variable(tf.ones([4, 2]))

    @tf.function(autograph=False)
    def step() -> Any:
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            rows = tf.gather(table.value, [1, 2])
            loss = tf.reduce_sum(dense.value) + tf.reduce_sum(rows)
            loss += tf.cast(tf.reduce_sum(narrow.value), tf.float32)
        return tape.gradient(loss, [dense.value, narrow.value, table.value])

    graph = step.get_concrete_function().graph
    step()
    return [
        operation.get_attr("step").decode()
        for operation in graph.get_operations()
        if operation.type.startswith("RingKeras")
        and operation.type != "RingKerasAllreduceWait"
    ]


def test_all_of_a_reduction_is_one_step(rank_pool: Callable[..., RankPool]) -> None:
    for roles in rank_pool(2).run(roles_of_traced_ops):
        # Two buckets, values and indices.
        assert roles == ["begins", "continues", "continues", "continues"]
