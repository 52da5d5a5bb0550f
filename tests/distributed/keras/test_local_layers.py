"""Layers that each rank trains for itself, and what else touches a model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts

import ring_keras as ring


def model_with_own_head():
    """A body that all ranks have, and a head of each, which normalizes, too."""
    keras.utils.set_random_seed(1 + ring.rank())
    body = keras.layers.Dense(4, "tanh")
    head = keras.Sequential(
        [
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    return keras.Sequential([keras.Input((6,)), body, head]), body, head


def fit(model, head, **options):
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.Adam(0.01), local_layers=[head]
    )
    model.compile(optimizer, loss="binary_crossentropy")
    mine = ring.data.shard(training.dataset(32))
    return training.fit(model, mine, 4, epochs=2, **options)


def freezing_worker():
    """Trains both, and then the body alone."""
    model, body, head = model_with_own_head()
    fit(model, head)
    trained = training.as_bytes(head.get_weights())
    statistics = training.as_bytes(
        [keras.ops.convert_to_numpy(v) for v in head.non_trainable_variables]
    )
    head.trainable = False
    before = training.as_bytes(body.get_weights())
    fit(model, head)
    after = training.as_bytes(body.get_weights())
    assert before != after
    return after, trained, statistics, training.as_bytes(head.get_weights())


@pytest.mark.slow
def test_they_stay_each_ranks_own_when_they_are_frozen(rank_pool):
    first, second = rank_pool(2).run(freezing_worker)

    assert first[0] == second[0]
    for _, trained, _, in_the_end in (first, second):
        assert trained == in_the_end
    # Of different weights, and of batches that each rank has seen.
    assert first[1] != second[1]
    assert first[2] != second[2]


def backup_worker(directory, name):
    model, _, head = model_with_own_head()
    callback = {
        "Preemption": lambda: ring.callbacks.Preemption(directory),
        "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore(directory),
    }[name]()
    with pytest.raises(ring.RingKerasError) as caught:
        fit(model, head, callbacks=[callback])
    other, _, _ = model_with_own_head()
    own = ring.callbacks.BroadcastGlobalVariables(local_variables=other.weights[-1:])
    with pytest.raises(ring.RingKerasError) as of_variables:
        fit(other, head, callbacks=[own, callback])
    return [str(caught.value), str(of_variables.value)]


@pytest.mark.parametrize("name", ["Preemption", "BackupAndRestore"])
def test_a_backup_of_one_rank_is_refused(rank_pool, tmp_path, name):
    for errors in rank_pool(2).run(backup_worker, args=(str(tmp_path), name)):
        for error in errors:
            assert error.startswith(f"[RK516] {name} saves what the first rank has")


def lone_worker(directory):
    model, _, head = model_with_own_head()
    fit(model, head, callbacks=[ring.callbacks.Preemption(directory)])
    return int(model.optimizer.iterations)


def test_one_rank_may_back_them_up(rank_pool, tmp_path):
    assert rank_pool(1).run(lone_worker, args=(str(tmp_path),)) == [16]


def elastic_worker():
    model, _, head = model_with_own_head()
    fit(model, head)
    with pytest.raises(ValueError, match="local_layers") as caught:
        ring.elastic.KerasState(model)
    return str(caught.value)


def test_a_state_of_all_ranks_is_refused(rank_pool):
    (error,) = rank_pool(1).run(elastic_worker)

    assert error.startswith("[RK620] ring_keras.elastic.KerasState gives all ranks")


class ClipsItself(keras.Model):
    """Hands an optimizer new tensors in place of a tape's gradients."""

    def train_step(self, data):
        x, y = data
        with ring.DistributedGradientTape(
            tf.GradientTape(), local_layers=self.layers[-1:]
        ) as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply([tf.clip_by_norm(g, 1e3) for g in gradients], variables)
        return {"loss": loss}


def adopted_worker():
    """The head's gradients, after one step of an optimizer that `fit` has adopted."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    head = keras.layers.Dense(1)
    model = ClipsItself(inputs, head(keras.layers.Dense(4)(inputs)))
    model.compile(keras.optimizers.SGD(1.0))
    x = np.full((4, 6), 1.0 + ring.rank(), np.float32)
    before = head.bias.numpy().copy()
    own = float(np.mean(2 * (model(x).numpy() - 1)))
    own /= ring.size()  # As `scale_local_gradients` has it.
    start = ring.callbacks.BroadcastGlobalVariables(local_variables=head.weights)
    ones = np.ones((4, 1), np.float32)
    model.fit(x, ones, batch_size=4, verbose=0, callbacks=[start])
    return float(before[0] - head.bias.numpy()[0]), own


def test_a_tapes_own_gradients_stay_so_when_they_are_clipped(rank_pool):
    results = rank_pool(2).run(adopted_worker)

    for step, own in results:
        assert step == pytest.approx(own, rel=1e-5)
    assert results[0][1] != pytest.approx(results[1][1], rel=0.01)


def saving_worker(directory):
    """What is said of files: of all ranks, of the best model, and of each rank."""
    model, _, head = model_with_own_head()
    own = f"{directory}/{ring.rank()}.keras"
    told = {}
    for name, saver in {
        "all": keras.callbacks.ModelCheckpoint(f"{directory}/all.keras"),
        "best": ring.callbacks.BestModelCheckpoint(
            "loss", filepath=f"{directory}/best.keras"
        ),
        "own": keras.callbacks.ModelCheckpoint(own),
    }.items():
        with LogTexts() as texts:
            fit(model, head, callbacks=[saver])
        told[name] = [text for text in texts if "[RK653]" in text]
    loaded = keras.models.load_model(own, compile=False)
    assert training.as_bytes(loaded.get_weights()) == training.as_bytes(
        model.get_weights()
    )
    return told


def test_a_file_of_one_ranks_layers_is_told_of(rank_pool, tmp_path):
    first, second = rank_pool(2).run(saving_worker, args=(str(tmp_path),))

    assert not any(second.values())
    for name in ("all", "best"):
        [text] = first[name]
        assert f"only rank 0 saves '{tmp_path}/{name}.keras'" in text
        assert "kernel" in text or "gamma" in text
    assert first["own"] == []
