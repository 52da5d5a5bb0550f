"""Files of a divided state: all ranks save them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import (
    MAKERS,
    build,
    fit,
    initialized,
    needs_several,
    sharded,
    shared_data,
    values,
)

import ring_keras as ring


def files_worker(path: str, name: str) -> None:
    """Files have the whole state, and a part of it is taken out of them."""
    whole, sharded = (fit(name, shard_state) for shard_state in (False, True))
    sharded.save(f"{path}/{name}.keras")
    sharded.save_weights(f"{path}/{ring.rank()}-{name}.weights.h5")

    plain = keras.models.load_model(f"{path}/{name}.keras")
    assert values(plain.optimizer) == values(whole.optimizer)
    plain = build(9)
    plain.compile(MAKERS[name](), "mse")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(f"{path}/{ring.rank()}-{name}.weights.h5")
    assert values(plain.optimizer) == values(whole.optimizer)

    again = build(9)
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=True)
    training.compile_model(again, optimizer)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(f"{path}/{name}.weights.h5".replace(name, f"0-{name}"))
    assert values(again.optimizer) == values(sharded.optimizer)

    loaded = keras.models.load_model(f"{path}/{name}.keras")
    ring.DistributedOptimizer(loaded.optimizer, shard_state=True)
    assert values(loaded.optimizer) == values(sharded.optimizer)
    data = training.dataset(training.steps_of(2, ring.size()))
    for model in (whole, sharded, again, loaded):
        training.fit(model, ring.data.shard(data, remainder="keep"), training.BATCH)
        assert training.as_bytes(model.get_weights()) == training.as_bytes(
            whole.get_weights()
        )


@pytest.mark.parametrize(
    "name",
    [
        "adam",
        pytest.param("loss_scaled", marks=pytest.mark.slow),
        pytest.param("averages_taken", marks=pytest.mark.slow),
        pytest.param("nadam", marks=pytest.mark.slow),
        pytest.param("adafactor", marks=pytest.mark.slow),
        pytest.param("several", marks=[pytest.mark.slow, needs_several]),
        pytest.param("several_loss_scaled", marks=[pytest.mark.slow, needs_several]),
    ],
)
def test_files_have_the_whole_state(rank_pool, tmp_path, name):
    rank_pool(2).run(files_worker, args=(str(tmp_path), name))


class Saves(keras.callbacks.Callback):
    """One of the user's own, on all ranks."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.path:
            raise OSError("there is no_directory")
        self.model.save(self.path)


def unwritable_worker(path: str, how: str) -> list[str]:
    """Rank 1 cannot write its file, twice; then all train and save."""
    model = sharded()
    training.fit(model, shared_data(), training.BATCH)
    nowhere = f"{path}/no_directory/model.keras"
    if how == "checkpoint":  # Which would make the directory.
        (Path(path) / "no_directory").touch()
    if how == "earlier":
        nowhere = ""
    own = nowhere if ring.rank() == 1 else f"{path}/{ring.rank()}.keras"
    make = keras.callbacks.ModelCheckpoint if how == "checkpoint" else Saves
    found = []
    for _ in range(2):
        with pytest.raises((OSError, ring.RankMismatchError)) as caught:
            if how == "alone":
                model.save(own)
            else:
                data = shared_data()
                training.fit(model, data, training.BATCH, callbacks=[make(own)])
        found.append(str(caught.value))
        x, y = training.arrays()
        model.train_on_batch(x[:8], y[:8])
    model = sharded()
    training.fit(model, shared_data(), training.BATCH)
    model.save(f"{path}/good{ring.rank()}.keras")
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "how",
    [
        "alone",
        "own",
        "earlier",
        "checkpoint",
    ],
)
@pytest.mark.slow
def test_all_ranks_hear_of_a_file_that_one_cannot_write(rank_pool, tmp_path, how, size):
    args = (str(tmp_path), how)
    messages = rank_pool(size).run(unwritable_worker, args=args, timeout_s=60)

    own = messages.pop(1)
    for others in messages:
        for message, cause in zip(others, own, strict=True):
            assert "no_directory" in cause and "[RK" not in cause
            assert "[RK310] " in message and "rank 1" in message
            assert "no_directory" in message


class FullDisk(dict):
    """Takes nothing, on one rank."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise OSError("no space left")


def failing_save_worker() -> None:
    model = sharded()
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    store = FullDisk() if ring.rank() == 1 else {}
    with pytest.raises(ring.RankMismatchError, match="on rank 1: OSError: no space"):
        optimizer.save_own_variables(store)
    optimizer.iterations.assign(ring.rank())
    with pytest.raises(ring.RankMismatchError, match=r"\[RK348\].*rank 1 1"):
        optimizer.save_own_variables({})
    assert ring.allgather_object(1) == [1] * ring.size()


def test_all_ranks_hear_of_a_save_that_fails_on_one(rank_pool):
    rank_pool(2).run(failing_save_worker)


def saving_alone_worker(path: str) -> list[str]:
    model = sharded()
    found = []
    with pytest.raises((ValueError, ring.RankMismatchError)) as caught:
        training.fit(
            model,
            shared_data(),
            training.BATCH,
            callbacks=[ring.callbacks.RootOnly(Saves(f"{path}/model.keras"))],
        )
    found.append(str(caught.value))
    ring.barrier()
    with (
        pytest.raises((ValueError, ring.RankMismatchError)) as caught,
        ring.callbacks.RootOnly() as is_root,
    ):
        if is_root:
            model.save(f"{path}/model.keras")
    found.append(str(caught.value))
    ring.barrier()
    model.save(f"{path}/{ring.rank()}.keras")  # Nothing is left behind.
    return found


def test_one_rank_does_not_save_alone(tmp_path):
    found = run_ranks(initialized, 2, args=(saving_alone_worker, str(tmp_path)))

    assert all("[RK338]" in text for texts in found for text in texts)


def first_saves_alone_worker(directory: str) -> None:
    ring.init()
    model = fit("adam", shard_state=True)
    if ring.rank() == 0:
        with pytest.raises(ring.PeerLostError, match=r"\[RK338\] .*on every rank"):
            model.save(f"{directory}/model.keras")


@pytest.mark.slow
def test_a_rank_that_saves_alone_is_told_why_it_fails(tmp_path):
    run_ranks(first_saves_alone_worker, 2, args=(str(tmp_path),))
