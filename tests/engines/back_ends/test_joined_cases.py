"""What `ring.data.join` on torch and JAX leaves as it was, and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import (
    assert_equal_on_all,
    data_of,
    message_of,
    state_of,
)
from support.back_ends import BACK_END, HAS_EXECUTIONS, begin, needs_back_end, ranks
from support.joined_fits import batches_of, dataset_of, poisoned

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

COUNTS = [8, 20]  # Rows, in batches of 4.


def begun(**options):
    """A model with layers that keep something of each batch."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(3)
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(6, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    if BACK_END == "torch":
        import torch

        layers.insert(1, keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(4)))
        layers.insert(2, keras.layers.TorchModuleWrapper(torch.nn.Dropout(0.1)))
        x = np.ones((2, 4), "float32")
        keras.Sequential(layers)(x)
    model = keras.Sequential(layers)
    loss = poisoned(keras.losses.MeanSquaredError)()
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, loss, metrics=["mae"], **options)
    return ring, keras, model


def joined(ring, keras, counts=COUNTS):
    rows = counts[ring.rank()]
    data = dataset_of(keras, batches_of(list(data_of(ring.rank(), rows))))
    return ring.data.join(data)


def own_values(model):
    """What a rank has for itself: statistics, seeds, metrics, buffers of torch."""
    if BACK_END == "jax":
        model.jax_state_sync()
    values = [*model.non_trainable_variables, *model.metrics_variables]
    found = [np.array(one.numpy()) for one in values]
    if BACK_END == "torch":
        found += [np.array(one.numpy()) for one in model.buffers()]
    return found


def own_state_worker(steps_per_execution):
    ring, keras, model = begun(steps_per_execution=steps_per_execution)
    kept, logged, weights = [], [], []

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kept.append(own_values(model))
            logged.append({key: float(value) for key, value in logs.items()})
            weights.append([np.array(w.numpy()) for w in model.trainable_weights])

    history = model.fit(
        joined(ring, keras), epochs=2, shuffle=False, verbose=0, callbacks=[Notes()]
    ).history
    return kept, logged, weights, history, state_of(model)


@pytest.mark.parametrize("steps", [1, 2] if HAS_EXECUTIONS else [1])
def test_what_a_rank_has_for_itself_stays_as_it_was(steps):
    found = ranks(own_state_worker, 2, steps)

    kept, logged, *_ = found[0]
    per_epoch = 5 if steps == 1 else 3
    own = 2 // steps  # Executions on data of its own.
    for epoch in range(2):
        last, *later = range(epoch * per_epoch + own - 1, (epoch + 1) * per_epoch)
        for number in later:
            assert logged[number] == logged[last]
            for one, other in zip(kept[number], kept[last], strict=True):
                np.testing.assert_array_equal(one, other)
    for kept, logged, weights, history, _ in found:
        assert np.isfinite([list(logs.values()) for logs in logged]).all()
        assert history == found[0][3]
        assert len(weights) == 2 * per_epoch
        for ours, firsts in zip(weights, found[0][2], strict=True):
            assert_equal_on_all([ours, firsts])
        pairs = zip(kept[0], kept[per_epoch], strict=True)
        assert any((one != other).any() for one, other in pairs)
    assert_equal_on_all([state for *_, state in found])


def changing_worker(alone):
    """Other numbers of batches in each epoch; none in the second one on rank 0."""
    ring = None if alone else begin()
    import keras

    keras.utils.set_random_seed(3)
    of_epochs = [[3, 4], [0, 2], [2, 1]]
    parts = [batches_of(list(data_of(rank, 16))) for rank in range(2)]

    class Changing(keras.utils.PyDataset):
        epoch = 0

        @property
        def num_batches(self):
            counts = of_epochs[self.epoch]
            return max(counts) if alone else counts[ring.rank()]

        def __getitem__(self, index):
            if not alone:
                return parts[ring.rank()][index]
            having = [rank for rank in range(2) if index < of_epochs[self.epoch][rank]]
            return tuple(
                np.concatenate(arrays)
                for arrays in zip(*(parts[rank][index] for rank in having), strict=True)
            )

    data = Changing()
    next_epoch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(data, "epoch", epoch)
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    if not alone:
        optimizer = ring.DistributedOptimizer(optimizer)
        data = ring.data.join(data)
    model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(
        data, shuffle=False, verbose=0, epochs=3, callbacks=[next_epoch]
    ).history
    return history, state_of(model)


def test_numbers_of_batches_may_change():
    (alone,) = ranks(changing_worker, 1, True)
    found = ranks(changing_worker, 2, False)

    assert_equal_on_all([state for _, state in found])
    for history, state in found:
        assert int(state[2]) == 8  # Steps.
        for key, values in alone[0].items():
            np.testing.assert_allclose(history[key], values, rtol=1e-5)
        for one, other in zip(state, alone[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def refused_worker():
    ring, keras, model = begun()
    rank = ring.rank()
    whole = joined(ring, keras)
    model.fit(whole, shuffle=False, verbose=0)
    x, y = data_of(rank, COUNTS[rank])

    class Endless(keras.utils.PyDataset):
        num_batches = None

    class Shrinking(keras.utils.PyDataset):
        num_batches = 1

        def __getitem__(self, index):
            return x[:4], y[:4]

    shrinking = ring.data.join(Shrinking())
    shrinking.num_batches = rank
    found = [
        message_of(lambda: ring.data.join(dataset_of(keras, [(x, y)] * rank))),
        message_of(lambda: ring.data.join(Endless() if rank else whole)),
        message_of(lambda: ring.data.join(4)),
        message_of(lambda: ring.data.join((x, y) if rank else "x")),
        message_of(lambda: model.fit(shrinking, verbose=0)),
        message_of(lambda: model.fit(whole, steps_per_epoch=2, verbose=0)),
        message_of(lambda: model.fit(whole if rank else copy.copy(whole), verbose=0)),
        message_of(lambda: model.fit(x, y, batch_size=4, verbose=0)),
    ]
    endless = Endless()
    assert ring.data.join(endless) is endless
    model.fit(whole, verbose=0)
    return found, state_of(model)


def test_what_cannot_be_joined_is_told_on_all_ranks():
    found = ranks(refused_worker, 2)

    for messages, _ in found:
        expected = [
            ("RankMismatchError", "[RK668] ring_keras.data.join: ranks [0] have no"),
            (
                "RankMismatchError",
                "[RK321] ring_keras.data.join: the data of ranks [1]",
            ),
            ("TypeError", "[RK669] ring_keras.data.join takes"),
            (
                "RankMismatchError",
                "[RK310] ring_keras.data.join failed on rank 0: Type",
            ),
            ("RankMismatchError", "[RK668] fit(): ranks [0] have no batch in"),
            ("RingKerasError", "[RK660] fit(steps_per_epoch=...) with data of"),
            ("RankMismatchError", "[RK326] fit(): joined arguments differ across"),
            ("RankMismatchError", "[RK326] fit(): steps per epoch differ"),
        ]
        for (kind, text), (expected_kind, begins) in zip(
            messages, expected, strict=True
        ):
            assert (kind, text[: len(begins)]) == (expected_kind, begins), text
    assert_equal_on_all([state for _, state in found])


def stopping_worker(where):
    """The rank without data, or the other one, ends it in a step that it sits out."""
    ring, keras, model = begun()
    heard = []

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append(batch)
            if where == f"stops on rank {ring.rank()}" and batch == 3:
                self.model.stop_training = True
            if where == f"fails on rank {ring.rank()}" and batch == 3:
                raise OSError("no disk")

        def on_test_batch_end(self, batch, logs=None):
            heard.append(-batch)
            if where == f"stops testing on rank {ring.rank()}" and batch == 3:
                self.model.stop_evaluating = True
            if where == f"fails in testing on rank {ring.rank()}" and batch == 3:
                raise OSError("no disk")

    def fit(callbacks):
        return model.fit(
            joined(ring, keras),
            validation_data=joined(ring, keras),
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        ).history

    told = message_of(lambda: fit([Stops()]))
    if told is not None:  # On JAX a step that has failed may have taken the weights.
        model = begun()[2]
    history = fit([])
    return heard, told, history, state_of(model)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "what", ["stops", "fails", "stops testing", "fails in testing"]
)
def test_all_end_where_one_does(what, rank):
    found = ranks(stopping_worker, 2, f"{what} on rank {rank}")

    steps = [0, 1, 2, 3, 4]
    tests = [0, -1, -2, -3, -4]
    for own, (heard, told, history, _) in enumerate(found):
        if what == "stops":
            assert heard == [0, 1, 2, 3, *tests]
        elif what == "stops testing":
            assert heard == [*steps, 0, -1, -2, -3] * 2
        else:
            assert told[0] == ("OSError" if own == rank else "RankMismatchError")
            assert "no disk" in told[1]
        assert history == found[0][2]
        if not what.startswith("fails"):
            assert told is None
    assert_equal_on_all([state for *_, state in found])
