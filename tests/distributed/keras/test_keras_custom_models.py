"""Models with a training step, or optimizers, of their own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts

import ring_keras as ring
from ring_keras import keras_internals as internals

LIMIT = 1e-6


class TwoOptimizers(keras.Model):
    """Like a GAN: no `call`, optimizers of its own, made by compile()."""

    def __init__(self, seed):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.first = keras.layers.Dense(3)
        self.second = keras.layers.Dense(1)

    def compile(self, rate):
        super().compile()
        self.first_optimizer = keras.optimizers.Adam(rate)
        self.second_optimizer = keras.optimizers.SGD(rate)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self.second(self.first(x)) - y))
        for layer, optimizer in (
            (self.first, self.first_optimizer),
            (self.second, self.second_optimizer),
        ):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class OneTape(TwoOptimizers):
    """Averages the gradients of one of its layers itself."""

    distributed = True
    clips = False

    def train_step(self, data):
        x, y = data
        tape = tf.GradientTape()
        if self.distributed:
            tape = ring.DistributedGradientTape(tape)
        with tape, tf.GradientTape() as plain:
            loss = tf.reduce_mean(tf.square(self.second(self.first(x)) - y))
        first = tape.gradient(loss, self.first.trainable_variables)
        second = plain.gradient(loss, self.second.trainable_variables)
        if self.clips:
            first = [tf.clip_by_value(gradient, -0.1, 0.1) for gradient in first]
        self.first_optimizer.apply(first, self.first.trainable_variables)
        self.second_optimizer.apply(second, self.second.trainable_variables)
        return {"loss": loss}


class OneTapeClips(OneTape):
    """Changes what the tape returned, which is averaged once more."""

    clips = True


def two_optimizers_worker(cls):
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(6, size))
    model = cls(1 + rank)
    model.compile(0.01)
    training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    )
    alone = cls(1)
    alone.distributed = False
    alone.compile(0.01)
    training.fit(alone, data, training.BATCH * size)
    return training.largest_difference(model.get_weights(), alone.get_weights())


@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(TwoOptimizers, marks=pytest.mark.slow),
        pytest.param(OneTape, marks=pytest.mark.slow),
        OneTapeClips,
    ],
)
def test_a_model_without_call_and_with_two_optimizers(rank_pool, cls):
    results = rank_pool(2).run(two_optimizers_worker, args=(cls,))

    assert max(results) <= LIMIT


class Contrasts(keras.Model):
    """Tells each pair of its batch from all others of the batch."""

    gathers = False

    def __init__(self, seed):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.first = keras.layers.Dense(3)
        # A bias would add as much to all, so that only rounding has a gradient.
        self.second = keras.layers.Dense(3, use_bias=False)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            anchors, others = self.first(x), self.second(x)
            labels = tf.range(tf.shape(x)[0])
            if self.gathers:
                labels += ring.rank() * tf.shape(x)[0]
                others = ring.allgather(others)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, tf.matmul(anchors, others, transpose_b=True)
                )
            )
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def contrasts_worker():
    """How far from one process: with what all ranks have gathered, and without."""
    size = ring.size()
    data = training.dataset(4 * training.BATCH * size)
    alone = Contrasts(1)
    alone.compile(keras.optimizers.Adam(0.01))
    training.fit(alone, data, training.BATCH * size)
    differences = []
    for gathers in (True, False):
        model = Contrasts(1)
        model.gathers = gathers
        model.compile(
            ring.DistributedOptimizer(keras.optimizers.Adam(0.01)), jit_compile=False
        )
        training.fit(model, ring.data.shard(data), training.BATCH)
        weights = model.get_weights(), alone.get_weights()
        differences.append(training.largest_difference(*weights))
    return differences


@pytest.mark.slow
def test_negatives_of_all_ranks_are_gathered_in_the_loss(rank_pool):
    for gathered, own in rank_pool(2).run(contrasts_worker):
        assert gathered <= LIMIT
        assert own > 100 * LIMIT, "exactness.md says that it is not equal"


def dice_worker():
    """What `fit` says of a loss over each example, and of one over the batch."""
    x, y = ring.data.shard(tuple(array[:16] for array in training.arrays()))
    found = []
    for loss in (keras.losses.Dice(axis=1), keras.losses.Dice()):
        model = training.build(1)
        model.compile(ring.DistributedOptimizer("sgd"), loss)
        with LogTexts() as texts:
            model.fit(x, y, batch_size=4, verbose=0)
        found.append([text for text in texts if "RK655" in text])
    return found


def told_of_counts_worker():
    """What `fit` says of lengths and of added losses."""
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(2 + n % 3, 4)).astype(np.float32) for n in range(8)]
    items = [(row, row[:, :1], np.ones(len(row), np.float32)) for row in rows]
    sizes = ([None, 4], [None, 1], [None])
    data = tf.data.Dataset.from_generator(
        lambda: items, output_signature=tuple(map(tf.TensorSpec, sizes))
    )
    data = data.apply(tf.data.experimental.assert_cardinality(len(items)))
    activity = keras.regularizers.L2(0.1)
    found = []
    for lengths, reduction, regularizer in (
        (sizes, "sum_over_batch_size", None),
        (sizes, "mean_with_sample_weight", None),
        (([5, 4], [5, 1], [5]), "sum_over_batch_size", activity),
        (sizes, "mean_with_sample_weight", activity),
    ):
        model = keras.Sequential(
            [
                keras.Input((None, 4)),
                keras.layers.Dense(1, activity_regularizer=regularizer),
            ]
        )
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        model.compile(ring.DistributedOptimizer("sgd"), loss)
        with LogTexts() as texts:
            batches = ring.data.shard(data).padded_batch(2, lengths)
            model.fit(batches, verbose=0)
        parts = ("RK667", "layers that add losses")
        found.append([part for part in parts for text in texts if part in text])
    return found


def test_what_makes_ranks_count_otherwise_is_told_of(rank_pool):
    first, others = rank_pool(2).run(told_of_counts_worker)

    assert first == [["RK667"], [], [], ["layers that add losses"]]
    assert others == [[], [], [], []]


@pytest.mark.parametrize("loss", ["circle", "Circle", "circle()", "tversky", "Dice()"])
def test_losses_over_the_whole_batch_are_known(loss):
    model = training.build(1)
    is_object = loss.endswith("()")
    model.compile(
        "sgd", getattr(keras.losses, loss[:-2].title())() if is_object else loss
    )

    assert len(internals.batch_losses(model)) == 1


def test_weights_of_some_outputs_are_not_those_of_all():
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    try:
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    except ValueError:
        pytest.skip("this Keras has no such reduction")
    weights = np.ones(2)
    of_a = {"a": weights, "b": None}

    def divisors(sample_weight):
        return internals.loss_divisors(model, sample_weight)

    model.compile("sgd", loss)
    assert len(divisors(of_a)) == 2
    assert divisors(weights)[0] is weights
    assert divisors(None) == [None]
    for losses in ({"a": loss, "b": None}, {"a": loss}):
        model.compile("sgd", losses)
        assert divisors(of_a)[0] is weights
        assert len(divisors(of_a)) == 1
        assert divisors({"a": None, "b": weights}) == [None]


def test_a_loss_over_the_whole_batch_is_told_of(rank_pool):
    (of_examples, of_batches), others = rank_pool(2).run(dice_worker)

    assert of_examples == []
    assert len(of_batches) == 1
    assert "loss 'dice' of model" in of_batches[0]
    assert others == [[], []]
