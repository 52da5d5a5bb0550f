"""Optimizers wherever a model keeps them, and those that nobody found."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring


class InContainers(keras.Model):
    """Keeps its optimizers in a list and in a dict; the second layer has Adam's
    state, which must begin alike too."""

    def __init__(self, seed):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.parts = [keras.layers.Dense(3), keras.layers.Dense(1)]
        self.optimizers = [keras.optimizers.SGD(0.01)]
        self.others = {"second": {"its": keras.optimizers.Adam(0.01)}}

    def call(self, x):
        return self.parts[1](self.parts[0](x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        for layer, optimizer in zip(
            self.parts, (self.optimizers[0], self.others["second"]["its"]), strict=True
        ):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def containers_worker(jit_compile, distributed=()):
    """Compares weights with those of one process."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(6, size))
    models = InContainers(1 + rank), InContainers(1)
    for model in models:
        model.compile(jit_compile=jit_compile)
    for index in distributed:
        ring.DistributedOptimizer(models[0].optimizers[index])
    training.fit(
        models[0],
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[] if distributed else [ring.callbacks.Distributed()],
    )
    training.fit(models[1], data, training.BATCH * size)
    return training.largest_difference(*(model.get_weights() for model in models))


def test_optimizers_in_containers_train_together(rank_pool):
    assert max(rank_pool(2).run(containers_worker, args=(False,))) <= 1e-6


def test_one_that_is_distributed_brings_the_others(rank_pool):
    assert max(rank_pool(2).run(containers_worker, args=(False, (0,)))) <= 1e-6


class AppliesByItself(keras.optimizers.SGD):
    """Leaves out what the hook waits for."""

    def _backend_apply_gradients(self, grads, trainable_variables):
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)


def never_reduced_worker():
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer(AppliesByItself(0.1)))
    with pytest.raises(ring.RingKerasError, match="reduced no gradients"):
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )


def test_a_hook_that_is_never_reached_is_noticed(rank_pool):
    rank_pool(2).run(never_reduced_worker)


def test_other_options_for_the_same_optimizer_are_refused():
    optimizer = ring.DistributedOptimizer("sgd", op=ring.Sum)

    assert ring.DistributedOptimizer(optimizer, op="sum") is optimizer
    with pytest.raises(ValueError, match=r"op=.*average.*before op=.*sum"):
        ring.DistributedOptimizer(optimizer)
    wrapper = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"bucket_size_bytes=4096, and before"):
        ring.DistributedOptimizer(wrapper, op=ring.Sum, bucket_size_bytes=4096)
