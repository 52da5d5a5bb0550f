"""AutoGraph rewrites the user's functions, and none of this package's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import keras
import tensorflow as tf
from support.rank_pool import RankPools

import ring_keras as ring


def rewritten() -> set[str]:
    """The functions that AutoGraph has rewritten in this process."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("__autograph_generated_file")
    ]
    return {
        name
        for module in modules
        for name in re.findall(r"def tf__(\w+)", Path(str(module.__file__)).read_text())
    }


def train() -> set[str]:
    before = rewritten()
    weight = tf.Variable([1.0, 2.0])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])
    data = ring.data.shard(tf.data.Dataset.range(8), seed=1).batch(2)
    # Of unknown length, so that ranks ask each other for every batch.
    data = ring.data.join(data.filter(lambda _: True))

    @tf.function
    def users_step(batch):
        with ring.data.weighted_step(batch) as (numbers, _):
            with ring.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_mean(tf.cast(numbers, tf.float32)) * weight[0]
            (gradient,) = tape.gradient(loss, [weight])
            optimizer.apply([weight * 1.0], [weight])
        return ring.allreduce(gradient) + ring.broadcast(gradient, root_rank=0)

    for batch in data:
        users_step(batch)
    return rewritten() - before


def test_only_the_users_functions_are_rewritten(rank_pool: RankPools) -> None:
    for functions in rank_pool(2).run(train):
        assert "users_step" in functions
        assert functions <= {"users_step", "lam"}  # The filter's.
