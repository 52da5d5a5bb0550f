"""`BestModelCheckpoint` where the ranks divide an optimizer's state."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import keras
import pytest
from support import training
from support.sharded_models import MAKERS, build, needs_several, values

import ring_keras as ring


def best(path: str, shard_state: bool) -> Any:
    return ring.callbacks.BestModelCheckpoint(
        filepath=f"{path}/{shard_state}-{{epoch}}.keras"
    )


def train(
    name: str, shard_state: bool, callback: Any, sign: int = 1, epochs: int = 4
) -> keras.Model:
    model = build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(MAKERS[name](), shard_state=shard_state)
    training.compile_model(model, optimizer)
    x, y = training.arrays()
    # The loss of some epochs is not the best.
    validation = x[:32] * sign, y[:32]
    training.fit(
        model,
        ring.data.shard(training.dataset(40), remainder="keep"),
        training.BATCH,
        epochs=epochs,
        validation_data=ring.data.shard(validation),
        callbacks=[callback],
    )
    return model


def compare_worker(name: str, path: str, sign: int) -> None:
    callbacks = [best(path, shard_state) for shard_state in (False, True)]
    models = [
        train(name, shard_state, callback, sign)
        for shard_state, callback in zip((False, True), callbacks, strict=True)
    ]
    assert callbacks[0].best == callbacks[1].best is not None
    ring.barrier(name="saved")
    files = [sorted(Path(path).glob(f"{divided}-*")) for divided in (False, True)]
    names = [[file.name.split("-")[1] for file in those] for those in files]
    assert names[0] == names[1]
    assert (len(names[0]) == 1) == (sign < 0)
    for pair in zip(*files, strict=True):
        whole, sharded = map(keras.models.load_model, pair)
        assert values(whole.optimizer) == values(sharded.optimizer), pair
        weights = [training.as_bytes(m.get_weights()) for m in (whole, sharded)]
        assert weights[0] == weights[1]
    weights = [training.as_bytes(model.get_weights()) for model in models]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name", "sign"),
    [
        (2, "accumulation", 1),
        pytest.param(3, "loss_scaled_accumulation", -1, marks=pytest.mark.slow),
        pytest.param(3, "adafactor_crossed", 1, marks=pytest.mark.slow),
        pytest.param(2, "several", 1, marks=[pytest.mark.slow, needs_several]),
    ],
)
def test_the_best_model_has_the_whole_state(
    rank_pool: Any, tmp_path: Path, size: int, name: str, sign: int
) -> None:
    rank_pool(size).run(compare_worker, args=(name, str(tmp_path), sign), timeout_s=240)


def interrupted_worker(path: str) -> str:
    callback = best(path, True)

    def interrupts(current: float, best: float) -> bool:
        signal.raise_signal(signal.SIGINT)
        return current < best

    # Only the rank that decides asks, once there is another epoch.
    callback.monitor_op = interrupts
    try:
        train("adam", True, callback)
        caught = ""
    except (KeyboardInterrupt, ring.RankMismatchError) as error:
        caught = f"{type(error).__name__} {error}"
    # Both go on together.
    train("adam", True, best(path, True), epochs=1)
    return caught


@pytest.mark.slow
def test_nobody_waits_for_a_rank_that_is_interrupted(
    rank_pool: Any, tmp_path: Path
) -> None:
    pool = rank_pool(2, env={"RING_KERAS_COLLECTIVE_TIMEOUT_S": "60"})
    first, second = pool.run(interrupted_worker, args=(str(tmp_path),))

    assert first == "KeyboardInterrupt "
    assert "RankMismatchError [RK310]" in second
    assert "rank 0 cannot take part: its fit() raised KeyboardInterrupt" in second


def set_worker(path: str) -> list[bytes]:
    """Of a process set without the first rank, which trains alone."""
    sets = [ring.add_process_set(ranks) for ranks in ([0], [1, 2])]
    mine = next(one for one in sets if one.included())
    optimizer = ring.DistributedOptimizer(
        MAKERS["clipnorm"](), process_set=mine, shard_state=True
    )
    model = training.compile_model(build(1), optimizer)
    file = f"{path}/{mine.ranks[0]}.weights.h5"
    callback = ring.callbacks.BestModelCheckpoint(
        "loss", filepath=file, save_weights_only=True
    )
    data = ring.data.shard(training.dataset(32), process_set=mine)
    training.fit(model, data, training.BATCH, callbacks=[callback])
    again = training.compile_model(build(2), MAKERS["clipnorm"]())
    again.optimizer.build(again.trainable_variables)
    again.load_weights(file)
    model.save(f"{path}/{mine.ranks[0]}.keras")
    whole = keras.models.load_model(f"{path}/{mine.ranks[0]}.keras")
    assert values(again.optimizer) == values(whole.optimizer)
    for one in sets:
        ring.remove_process_set(one)
    return values(again.optimizer)


@pytest.mark.slow
def test_a_set_saves_its_best_model(rank_pool: Any, tmp_path: Path) -> None:
    alone, *others = rank_pool(3).run(set_worker, args=(str(tmp_path),))

    assert others[0] == others[1] != alone


def failing_worker(path: str, what: str) -> list[int]:
    """The writer cannot, before or after the others have given their parts."""
    blocked = Path(path) / "blocked"
    if what == "its directory":
        if ring.rank() == 0:
            blocked.touch()
        ring.barrier(name="made")
        file = blocked / "model.keras"
    else:
        file = blocked / "model.keras"
        file.mkdir(parents=True, exist_ok=True)
        ring.barrier(name="made")
    for _ in range(2):
        callback = ring.callbacks.BestModelCheckpoint("loss", filepath=str(file))
        with pytest.raises((OSError, ring.RankMismatchError)) as caught:
            train("adam", True, callback, epochs=1)
        if ring.rank():
            assert "failed on rank 0" in str(caught.value)
    return ring.allgather_object(ring.rank())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["its directory", "its file"])
def test_all_hear_of_a_best_model_that_one_cannot_write(
    rank_pool: Any, tmp_path: Path, what: str
) -> None:
    results = rank_pool(2).run(failing_worker, args=(str(tmp_path), what), timeout_s=60)

    assert results == [[0, 1]] * 2
