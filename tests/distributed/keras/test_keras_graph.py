"""What `fit` adds to the graph of a step that TensorFlow traces."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks, training
from support.variants import variants

import ring_keras as ring

BRANCHES = {"If", "StatelessIf", "Case", "Switch", "Merge", "While", "StatelessWhile"}


class Traced(keras.Sequential):
    """Keeps the graphs in which its steps are traced: its own, and those around."""

    def train_step(self, data):
        graph = tf.compat.v1.get_default_graph()
        self.graphs = []
        while isinstance(graph, tf.__internal__.FuncGraph):
            self.graphs.append(graph)
            graph = graph.outer_graph
        return super().train_step(data)


def examples():
    x, y = training.arrays()
    return x[:16], y[:16]


def sharded() -> tf.data.Dataset:
    data = ring.data.shard(tf.data.Dataset.from_tensor_slices(examples()))
    return data.batch(4, drop_remainder=True)


def generated() -> tf.data.Dataset:
    """Of which nobody knows how many batches there are."""
    x, y = (array[:8] for array in examples())
    spec = tuple(tf.TensorSpec(part.shape[1:], part.dtype) for part in (x, y))
    return tf.data.Dataset.from_generator(
        lambda: zip(x + ring.rank(), y, strict=True), output_signature=spec
    ).batch(4, drop_remainder=True)


def traced(data) -> list[tf.Operation]:
    """All operations of a step of `fit`."""
    model = Traced(training.build(1).layers)
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(ring.DistributedOptimizer(optimizer), "mse", jit_compile=False)
    model.fit(data(), verbose=0)
    assert len(model.graphs) > 1
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
    return [op for graph in model.graphs for op in graph.get_operations()]


def ops_of_a_step(data) -> set[str]:
    return {op.type for op in traced(data)}


def waits_that_block() -> set[bool]:
    ring.init()
    waits = [op for op in traced(sharded) if op.type == "RingKerasAllreduceWait"]
    return {op.get_attr("blocks") for op in waits}


@pytest.mark.parametrize(("threads", "block"), variants([("2", True)], [("1", False)]))
def test_a_thread_waits_where_there_are_others(threads, block) -> None:
    env = {"TF_NUM_INTEROP_THREADS": threads}
    assert run_ranks(waits_that_block, 2, env=env) == [{block}] * 2


# With one anywhere TensorFlow needs longer for each op of a step: 2.5 % of one of many
# small ones.
@pytest.mark.parametrize("data", [sharded, generated])
def test_no_branch_comes_into_a_step(rank_pool, data) -> None:
    for ops in rank_pool(2).run(ops_of_a_step, args=(data,)):
        # Where nobody knows their number, batches are taken before the step.
        assert ("RingKerasNoteFirstBatch" in ops) == (data is sharded)
        assert not ops & BRANCHES
