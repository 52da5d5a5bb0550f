"""A callback that trains beside the batches of a `fit`, while a rank may stop."""

from __future__ import annotations

import keras
import pytest
from support import training

import ring_keras as ring


class StopsSecondRank(keras.callbacks.Callback):
    """After its second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 1:
            self.model.stop_training = True


def trains_at(moment, model, way):
    """A callback that has that model train a little, at each batch but the first."""
    x, y = training.arrays()

    def train(batch, logs=None):
        if batch == 0:
            return
        if way == "train_on_batch":
            model.train_on_batch(x[:4], y[:4])
        else:
            model.fit(x[:4], y[:4], batch_size=4, verbose=0)

    callback = keras.callbacks.Callback()
    setattr(callback, moment, train)
    return callback


def stopping_worker(moment, own, way):
    model = training.distributed_model(1)
    other = model if own else training.distributed_model(2)
    with pytest.raises(Exception) as caught:
        training.fit(
            model,
            ring.data.shard(training.dataset(4 * 4 * ring.size())),
            4,
            callbacks=[StopsSecondRank(), trains_at(moment, other, way)],
        )
    # All train again who have been told.
    training.fit(model, ring.data.shard(training.dataset(16)), 4)
    return str(caught.value), training.as_bytes(model.get_weights())


@pytest.mark.parametrize(
    ("moment", "own", "way"),
    [
        ("on_train_batch_begin", True, "train_on_batch"),
        ("on_train_batch_end", False, "train_on_batch"),
        pytest.param(
            "on_train_batch_begin", False, "train_on_batch", marks=pytest.mark.slow
        ),
        pytest.param(
            "on_train_batch_end", True, "train_on_batch", marks=pytest.mark.slow
        ),
        pytest.param("on_train_batch_begin", False, "fit", marks=pytest.mark.slow),
        pytest.param("on_train_batch_end", False, "fit", marks=pytest.mark.slow),
    ],
)
def test_training_beside_a_batch_that_another_rank_does_not_take_is_refused(
    rank_pool, moment, own, way
):
    (error, weights), (told, others) = rank_pool(2).run(
        stopping_worker, args=(moment, own, way)
    )

    assert error.startswith("[RK609] a callback of fit() trains beside a batch that")
    assert "[RK310]" in told
    assert "[RK609]" in told
    assert weights == others


def training_worker(uneven):
    """All train beside all batches, of data that may end sooner on one rank."""
    model, other = (training.distributed_model(seed) for seed in (1, 2))
    callbacks = [
        trains_at(moment, one, "train_on_batch")
        for moment in ("on_train_batch_begin", "on_train_batch_end")
        for one in (model, other)
    ]
    data = training.dataset(8 + 8 * (ring.rank() if uneven else 1)).batch(4)
    if uneven:
        data = ring.data.join(data)
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    steps = [int(one.optimizer.iterations) for one in (model, other)]
    return steps, [training.as_bytes(one.get_weights()) for one in (model, other)]


@pytest.mark.parametrize("uneven", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_beside_batches_that_all_ranks_take(rank_pool, uneven):
    first, second = rank_pool(2).run(training_worker, args=(uneven,))

    assert first == second
    # Four batches in two epochs, each but the first of its epoch with two beside.
    assert first[0][1] == 12
