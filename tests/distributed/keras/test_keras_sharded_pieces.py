"""Variables of whose state several ranks have pieces."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.sharded_models import require_own_part, state_bytes, values
from support.sharded_pieces import MAKERS, compiled, fit, own_data, shards

import ring_keras as ring
from ring_keras import _libraries


def compare_worker(names: list[str], options: dict[str, object]) -> list[bytes]:
    """Weights, and what this rank has of the state, with and without."""
    found = []
    for name in names:
        whole, sharded = (fit(name, divided, **options) for divided in (False, True))
        weights = training.as_bytes(whole.get_weights())
        assert training.as_bytes(sharded.get_weights()) == weights, name
        found.append(weights)
        require_own_part(sharded.optimizer, whole.optimizer, name)
        if shards(sharded):
            assert sum(shard.is_cut for shard in shards(sharded)) >= ring.size() - 1
    return found


SOME = ["sgd_without_state", "adamw", "averages"]


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ["averages"]),
        pytest.param(2, SOME, marks=pytest.mark.slow),
        pytest.param(3, [*MAKERS][::2], marks=pytest.mark.slow),
        pytest.param(3, [*MAKERS][1::2], marks=pytest.mark.slow),
        pytest.param(4, SOME, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_pieces_train_the_same_weights(rank_pool, size, names):
    found = rank_pool(size).run(compare_worker, args=(names, {}))

    assert all(weights == found[0] for weights in found)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"fused": False}], ids=str)
def test_pieces_in_other_steps_train_the_same_weights(rank_pool, options):
    names = [*SOME, "sgd_accumulated", "loss_scaled", "rmsprop", "ftrl"]
    rank_pool(3).run(compare_worker, args=(names, options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "names"),
    [(2, ["sgd", "adamw", "averages"]), (4, ["adamw"])],
)
def test_pieces_in_compiled_steps_train_the_same_weights(rank_pool, size, names):
    """Of others, and with other optimizers, XLA rounds in its own way."""
    if not _libraries.has_xla_kernels():
        pytest.skip("needs TensorFlow 2.20 or newer")
    rank_pool(size).run(compare_worker, args=(names, {"jit_compile": True}))


def twice_worker(make: str, sparse: bool) -> None:
    """Of two gradients for each variable, with and without."""
    draws = np.random.default_rng(ring.rank()).normal(size=(2, 3, 256, 64))
    grads = [tf.constant(one, tf.float32) for of_rank in draws for one in of_rank]

    def second(gradient: tf.Tensor) -> tf.Tensor | tf.IndexedSlices:
        if not sparse:
            return gradient
        rows = tf.range(0, 256, 3)
        return tf.IndexedSlices(tf.gather(gradient, rows), rows, tf.shape(gradient))

    found = []
    for divided in (False, True):
        weights = [keras.Variable(np.ones((256, 64), "float32")) for _ in range(3)]
        inner = getattr(keras.optimizers, make)(0.1)
        optimizer = ring.DistributedOptimizer(inner, shard_state=divided)
        optimizer.build(weights)

        @tf.function
        def step() -> None:
            own = [*grads[:3], *map(second, grads[3:])]
            optimizer.apply(own, [*weights, *weights])  # noqa: B023

        for _ in range(3):
            step()
        found.append(training.as_bytes([weight.numpy() for weight in weights]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("make", "sparse"),
    [("AdamW", False), ("Adam", False), ("Adam", True), ("RMSprop", True)],
)
def test_a_variable_may_be_given_twice(rank_pool, make, sparse):
    rank_pool(2).run(twice_worker, args=(make, sparse))


def balance_worker() -> list[float]:
    """Of the optimizer's bytes this rank's share."""
    whole, sharded = (compiled("adam", divided) for divided in (False, True))
    for model in (whole, sharded):
        model.optimizer.build(model.trainable_variables)
    return [state_bytes(sharded.optimizer) / state_bytes(whole.optimizer)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_rank_has_more_than_its_share(rank_pool, size):
    for (share,) in rank_pool(size).run(balance_worker):
        assert share <= 1.05 / size


def files_worker(path: str) -> list[bytes]:
    """What 3 ranks have saved, whole and in parts, others begin with."""
    whole = fit("averages", False)
    sharded = fit("averages", True)
    sharded.save(f"{path}/whole.keras")
    plain = keras.models.load_model(f"{path}/whole.keras")
    assert values(plain.optimizer) == values(whole.optimizer)
    again = compiled("averages", True)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(f"{path}/whole.keras")
    assert values(again.optimizer) == values(sharded.optimizer)
    # Of another shape, if of as many elements.
    store = dict(enumerate(np.asarray(v) for v in plain.optimizer.variables))
    store = {str(index): value.T for index, value in store.items()}
    before = values(again.optimizer)
    with pytest.raises(ValueError, match="RK834"):
        again.optimizer.load_own_variables(store)
    assert values(again.optimizer) == before

    model = compiled("averages", True)
    x, y = own_data()
    checkpoint = ring.callbacks.Checkpoint(f"{path}/parts", every="epoch")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[checkpoint])
    return [training.as_bytes(whole.get_weights()), *values(plain.optimizer)]


class Looks(keras.callbacks.Callback):
    """What `fit` begins with, whole."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if not hasattr(self, "found"):
            weights = training.as_bytes(self.model.get_weights())
            store: dict[str, np.ndarray] = {}
            self.model.optimizer.save_own_variables(store)
            self.found = [weights, *(np.asarray(v).tobytes() for v in store.values())]


def other_size_worker(path: str, name: str) -> list[bytes]:
    model, looks = compiled(name, True), Looks()
    checkpoint = ring.callbacks.Checkpoint(f"{path}/parts", every="epoch")
    x, y = own_data()
    model.fit(x, y, 4, epochs=2, verbose=0, callbacks=[checkpoint, looks])
    return looks.found


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_ranks_go_on_from_files_of_pieces(rank_pool, tmp_path: Path, size):
    saved = rank_pool(3).run(files_worker, args=(str(tmp_path),))

    found = rank_pool(size).run(other_size_worker, args=(str(tmp_path), "averages"))

    assert all(its == saved[0] for its in [*saved, *found])
