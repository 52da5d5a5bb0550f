"""Callbacks beside a divided state: those that save it, and those that cannot."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts
from support.run_ranks import run_ranks
from support.sharded_models import (
    MAKERS,
    build,
    initialized,
    refused,
    sharded,
    shared_data,
    values,
)

import ring_keras as ring


def checkpoint_worker(path: str) -> tuple[list[bytes], list[str]]:
    """Every rank saves to one path, in `fit`."""
    model = sharded()
    with LogTexts() as texts:
        training.fit(
            model,
            shared_data(),
            training.BATCH,
            epochs=2,
            callbacks=[
                keras.callbacks.ModelCheckpoint(f"{path}/{{epoch}}.keras"),
                keras.callbacks.ModelCheckpoint(
                    f"{path}/best.weights.h5",
                    monitor="loss",
                    save_best_only=True,
                    save_weights_only=True,
                ),
            ],
        )
    loaded = keras.models.load_model(f"{path}/2.keras")
    assert training.as_bytes(loaded.get_weights()) == training.as_bytes(
        model.get_weights()
    )
    return values(loaded.optimizer), [text for text in texts if "RK6" in text]


@pytest.mark.slow
def test_checkpoints_of_all_ranks_are_whole(rank_pool, tmp_path):
    (first, texts), (second, _) = rank_pool(2).run(
        checkpoint_worker, args=(str(tmp_path),)
    )

    assert first == second
    assert not texts
    assert {path.name for path in tmp_path.iterdir()} == {
        "1.keras",
        "2.keras",
        "best.weights.h5",
    }


def checkpoint_of_one_rank_worker(path: str) -> None:
    model = build(1)
    optimizer = ring.DistributedOptimizer(MAKERS["adam"](), shard_state=True)
    training.compile_model(model, optimizer)
    own = [keras.callbacks.ModelCheckpoint(path)] if ring.rank() == 0 else []
    data = ring.data.shard(training.dataset(40), seed=1)
    with pytest.raises(ring.RankMismatchError, match="RK338"):
        training.fit(model, data, training.BATCH, callbacks=own)


def test_a_checkpoint_of_one_rank_is_refused(rank_pool, tmp_path):
    path = str(tmp_path / "one.keras")
    rank_pool(2).run(checkpoint_of_one_rank_worker, args=(path,))


def differing_checkpoints_worker(path: str, what: str) -> None:
    is_first = ring.rank() == 0
    file = f"{path}/{ring.rank()}.keras"
    checkpoint, validation = {
        "save_freq": ({"save_freq": 2 + ring.rank()}, None),
        "best of a batch": ({"save_best_only": True, "save_freq": 2}, None),
        "best of one": ({"save_best_only": True}, is_first),
    }[what]
    model = sharded()
    own = training.dataset(8).batch(4)
    for _ in range(2):
        with pytest.raises(ring.RankMismatchError, match="RK338"):
            training.fit(
                model,
                shared_data(),
                training.BATCH,
                validation_data=own if validation else None,
                callbacks=[keras.callbacks.ModelCheckpoint(file, **checkpoint)],
            )
    assert ring.allgather_object(what) == [what] * ring.size()


@pytest.mark.parametrize("what", ["save_freq", "best of a batch", "best of one"])
def test_checkpoints_that_may_save_on_some_ranks_are_refused(rank_pool, tmp_path, what):
    args = (str(tmp_path), what)
    rank_pool(2).run(differing_checkpoints_worker, args=args, timeout_s=60)


def refused_callbacks_worker(path: str) -> None:
    checkpoint = keras.callbacks.ModelCheckpoint(f"{path}/model.keras")
    callbacks = [
        ring.callbacks.RootOnly(keras.callbacks.BackupAndRestore(path)),
        ring.callbacks.RootOnly(keras.callbacks.SwapEMAWeights()),
        None,
        ring.callbacks.RootOnly(checkpoint),
        ring.callbacks.BestModelCheckpoint(
            "loss", filepath=f"{path}/model.keras", save_freq=2
        ),
    ]
    for callback in callbacks:
        model = sharded("averages_taken")
        if callback is None:
            callback = ring.callbacks.BroadcastGlobalVariables(
                local_variables=model.layers[0].weights
            )
        refused(
            "RK336",
            lambda model=model, callback=callback: training.fit(
                model, shared_data(), training.BATCH, callbacks=[callback]
            ),
        )


def test_callbacks_that_need_the_whole_state_are_refused(tmp_path):
    run_ranks(initialized, 2, args=(refused_callbacks_worker, str(tmp_path)))


class OwnAdam(keras.optimizers.Adam):
    """May use the state of one weight to update another."""


def refused_options_worker(path: str) -> None:
    optimizer = ring.DistributedOptimizer
    adam = keras.optimizers.Adam
    refused("RK336", lambda: optimizer(OwnAdam(), shard_state=True))
    if hasattr(keras.optimizers, "MultiOptimizer"):
        made_later = keras.optimizers.MultiOptimizer(lambda variable: adam())
        refused("RK832", lambda: optimizer(made_later, shard_state=True))
        by_name = keras.optimizers.OptimizerMap(adam(), {".*bias": OwnAdam()})
        one_is_own = keras.optimizers.MultiOptimizer(by_name)
        refused("RK336", lambda: optimizer(one_is_own, shard_state=True))

    model = sharded()
    model.optimizer.build(model.trainable_variables)
    refused("RK336", lambda: model.save(f"{path}/model.h5"))
    checkpoint = tf.train.Checkpoint(model=model)
    refused("RK336", lambda: checkpoint.save(f"{path}/checkpoint"))
    model.export(f"{path}/{ring.rank()}", verbose=False)  # Has no optimizer.
    variables = model.optimizer.variables
    refused("RK337", lambda: ring.broadcast_variables(variables))
    refused("RK337", lambda: ring.elastic.TensorFlowState(variables))


def test_what_does_not_go_together_is_refused(rank_pool, tmp_path):
    rank_pool(2).run(refused_options_worker, args=(str(tmp_path),))
