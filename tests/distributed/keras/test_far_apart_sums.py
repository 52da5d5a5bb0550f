"""Losses that add up their batch, where hosts train apart: the sum is the host's."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training
from support.far_apart import INNER, Reference, batches_of
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring

# Reductions, how the step is compiled, and how many batches each rank has.
CASES = [
    ("sum", {}, (8, 8, 8, 8)),
    ("sum_over_batch_size", {}, (8, 8, 8, 8)),
    (None, {}, (8, 8, 8, 8)),
    ("sum", {"run_eagerly": True}, (5, 3, 5, 5)),
]
COMPILED = [("sum", {"jit_compile": True}, (8, 8, 8, 8))]


def loss_of(reduction):
    return keras.losses.BinaryCrossentropy(reduction=reduction)


def regularized(reduction):
    """A regularizer is no sum over the batch; Keras adds none to many numbers."""
    return {} if reduction is None else {"kernel_regularizer": "l2"}


def dataset_of(count):
    batches = batches_of(ring.rank(), ring.size(), 8)[:count]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, 6), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )
    return data.apply(tf.data.experimental.assert_cardinality(count))


def sums_worker(cases):
    """The weights after an epoch of each case."""
    ring.init()
    found = []
    for reduction, compiled, counts in cases:
        model = training.build(1, **regularized(reduction))
        optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=3, apart="hosts")
        model.compile(optimizer, loss_of(reduction), **compiled)
        data = dataset_of(counts[ring.rank()])
        if len(set(counts)) > 1:
            data = ring.data.join(data)
        model.fit(data, verbose=0, shuffle=False)
        found.append(model.get_weights())
    return found


@pytest.mark.parametrize(
    ("hosts", "cases"),
    [
        ("aa", CASES),
        pytest.param("aa", COMPILED, marks=pytest.mark.slow),
        pytest.param("aabb", CASES, marks=pytest.mark.slow),
        pytest.param("aab", CASES, marks=pytest.mark.slow),
    ],
)
def test_a_host_adds_up_the_batches_of_all_of_its_ranks(hosts, cases):
    size = len(hosts)
    env = [{"RING_KERAS_HOST_NAME": host} for host in hosts]

    everyones = run_ranks(sums_worker, size, args=(cases,), env=env, timeout_s=150)

    for found, (reduction, _, counts) in zip(
        zip(*everyones, strict=True), cases, strict=True
    ):
        assert len({training.as_bytes(weights) for weights in found}) == 1
        reference = Reference(
            *(size, "sgd", "diloco", 3),
            hosts=["ab".index(host) for host in hosts],
            loss=loss_of(reduction),
            **regularized(reduction),
        )
        reference.train({r: batches_of(r, size, 8)[: counts[r]] for r in range(size)})
        reference.meet()
        assert training.largest_difference(found[0], reference.common) < 1e-5


class TwoOptimizers(keras.Model):
    """Trains each of its layers by another one."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for optimizer, layer in zip(self.both, self.layers[-2:], strict=True):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def apart(what):
    return ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=3, apart=what)


MIXED = {
    "hosts and ranks": lambda: [apart("hosts"), apart("ranks")],
    "ranks and all": lambda: [apart("ranks"), ring.DistributedOptimizer("sgd")],
    "all and hosts": lambda: [ring.DistributedOptimizer("sgd"), apart("hosts")],
}


def mixed_worker():
    """The weights of two optimizers of a kind, and the error of each mixture."""
    ring.init()

    def fit(both):
        model = training.build(1, TwoOptimizers)
        model.both = both
        model.compile("sgd", loss_of("sum"))
        model.fit(dataset_of(4), verbose=0)
        return training.as_bytes(model.get_weights())

    with LogTexts() as texts:
        weights = [fit([apart(what), apart(what)]) for what in ("ranks", "hosts")]
    told = [text for text in texts if "[RK603]" in text]
    assert len(told) == (ring.rank() == 0)
    messages = []
    for make in MIXED.values():
        with pytest.raises(ring.RingKerasError) as error:
            fit(make())
        messages.append(str(error.value))
    return messages, weights


@pytest.mark.slow
def test_optimizers_that_would_need_different_sums_are_refused():
    env = [{"RING_KERAS_HOST_NAME": host} for host in "aab"]

    found = run_ranks(mixed_worker, 3, env=env)

    for messages, weights in found:
        assert weights == found[0][1]
        for message in messages:
            assert "same op and ranks" in message, message
