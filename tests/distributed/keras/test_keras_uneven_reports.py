"""What a rank without data of its own leaves in metrics and in logs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring

BATCH = 4
# On each of 2 ranks.
BATCHES = (1, 3)


class Seen(keras.metrics.Metric):
    """Counts predictions, in a list of Python and in a variable."""

    def __init__(self):
        super().__init__(name="seen")
        self.values = []
        self.count = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.values += np.ravel(y_pred).tolist()
        self.count.assign_add(keras.ops.cast(keras.ops.size(y_pred), "float32"))

    def result(self):
        return 1000 * len(self.values) + self.count

    def reset_state(self):
        self.values = []
        self.count.assign(0)

    def rank_state(self):
        return [self.values, float(self.count)]

    def merge_ranks(self, states):
        self.values = [value for values, _ in states for value in values]
        self.count.assign(sum(count for _, count in states))


def arrays(count):
    x = np.random.default_rng(ring.rank()).random((count, 3), dtype="float32") + 10
    return x, x.sum(1, keepdims=True)


def joined():
    dataset = tf.data.Dataset.from_tensor_slices(arrays(BATCH * BATCHES[ring.rank()]))
    return ring.data.join(dataset.batch(BATCH))


def nine_rows():
    x = np.random.default_rng(0).random((9, 3), dtype="float32") + 10
    return x, x.sum(1, keepdims=True)


def padded():
    """In the last step only one rank has a row, the ninth."""
    dataset = tf.data.Dataset.from_tensor_slices(nine_rows())
    return ring.data.shard(dataset, remainder="pad").batch(1)


def compiled(model, **options):
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", **options)
    return model


def metric_worker():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    metric = Seen()
    compiled(model, metrics=[metric], run_eagerly=True)
    of_join = model.fit(joined(), epochs=2, verbose=0).history["seen"]
    own = len(metric.values)
    history = model.fit(padded(), validation_data=padded(), verbose=0).history
    return of_join, own, history["seen"], history["val_seen"]


def test_a_metric_with_a_state_of_python_sees_no_row_of_zeros(rank_pool):
    for rank, (of_join, own, of_pad, of_validation) in enumerate(
        rank_pool(2).run(metric_worker)
    ):
        assert of_join == [16016, 16016]
        assert own == BATCH * BATCHES[rank]
        assert of_pad == of_validation == [9009]


class Own(keras.Model):
    """Its steps return what is no metric."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def loss_of(self, data):
        x, y = data[:2]
        return tf.reduce_mean(tf.square(self(x) - y))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"my_loss": loss}

    def test_step(self, data):
        return {"my_loss": self.loss_of(data)}


def logs_worker(options):
    keras.utils.set_random_seed(1)
    model = compiled(Own(), **options)
    model.build((None, 3))
    of_join = model.fit(joined(), epochs=2, verbose=0).history["my_loss"]
    x, y = arrays(BATCH * BATCHES[ring.rank()])
    last = float(model.loss_of((x[-BATCH:], y[-BATCH:])))
    # Batches of a length that the graph knows have no rows of zeros.
    plain = model.fit(
        tf.data.Dataset.from_tensor_slices((x[:4], y[:4])).batch(4, True), verbose=0
    ).history["my_loss"]
    first = float(model.loss_of((x[:BATCH], y[:BATCH])))
    history = model.fit(padded(), validation_data=padded(), verbose=0).history
    ninth = float(model.loss_of([one[8:] for one in nine_rows()]))
    of_pad = history["my_loss"], history["val_my_loss"]
    return of_join, last, plain, first, of_pad, ninth


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"jit_compile": False},
        {"jit_compile": False, "steps_per_execution": 2},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
    ],
    ids=["eager", "graph", "executions", "compiled"],
)
def test_logs_are_of_the_ranks_that_had_examples(rank_pool, options):
    zero, one = rank_pool(2).run(logs_worker, args=(options,))

    for of_join, _, plain, _, of_pad, ninth in (zero, one):
        # The second rank has three batches, the first one has one.
        np.testing.assert_allclose(of_join, [one[1]] * 2, rtol=1e-5)
        np.testing.assert_allclose(plain, [(zero[3] + one[3]) / 2], rtol=1e-5)
        np.testing.assert_allclose(of_pad, [[ninth]] * 2, rtol=1e-5)
