"""`BackupAndRestore` where the ranks divide an optimizer's state."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from support import training
from support.rank_pool import RankPools

import ring_keras as ring

EPOCHS = 3


def fit(
    shard_state: bool, *callbacks: keras.callbacks.Callback, epochs: int = EPOCHS
) -> list[bytes]:
    keras.utils.set_random_seed(100 + ring.rank())
    optimizer = keras.optimizers.AdamW(
        0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    )
    optimizer = ring.DistributedOptimizer(optimizer, shard_state=shard_state)
    model = training.compile_model(training.build(1 + ring.rank()), optimizer)
    data = ring.data.shard(training.dataset(48))
    training.fit(model, data, training.BATCH, epochs=epochs, callbacks=list(callbacks))
    return training.as_bytes(model.get_weights())


def backup_worker(path: str, double_checkpoint: bool) -> bool:
    whole = fit(False)
    for epochs in range(1, EPOCHS + 1):  # Each begins where the one before has ended.
        backup = keras.callbacks.BackupAndRestore(
            path,
            double_checkpoint=double_checkpoint,
            delete_checkpoint=epochs == EPOCHS,
        )
        resumed = fit(True, backup, epochs=epochs)
        ring.barrier(name="looked")
    assert not Path(path).exists()
    return resumed == whole


@pytest.mark.slow
@pytest.mark.parametrize("double_checkpoint", [False, True])
def test_all_ranks_save_and_go_on(
    rank_pool: RankPools, tmp_path: Path, double_checkpoint: bool
) -> None:
    path = str(tmp_path / "backup")

    results = rank_pool(3).run(
        backup_worker, args=(path, double_checkpoint), timeout_s=120
    )

    assert all(results)


def failing_worker(path: str) -> list[int]:
    with pytest.raises((ring.RankMismatchError, OSError)) as caught:
        fit(True, keras.callbacks.BackupAndRestore(path))
    if ring.rank():
        assert "failed on rank 0" in str(caught.value)
    return ring.allgather_object(ring.rank())


@pytest.mark.slow
@pytest.mark.parametrize("what", ["no directory", "no metadata"])
def test_all_hear_of_a_save_that_fails(
    rank_pool: RankPools, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "backup"
    if what == "no directory":
        path.touch()
    else:  # Found when all have given their parts.
        path.mkdir()
        (path / "training_metadata.json").symlink_to(path / "nowhere" / "file")

    results = rank_pool(2).run(failing_worker, args=(str(path),), timeout_s=60)

    assert results == [[0, 1]] * 2


def differing_worker(path: str) -> None:
    backup = keras.callbacks.BackupAndRestore(path, save_freq=1 + ring.rank())
    with pytest.raises(ring.RankMismatchError, match=r"\[RK338\].*save_freq of Backup"):
        fit(True, backup)
    callbacks = [] if ring.rank() else [backup]
    with pytest.raises(ring.RankMismatchError, match=r"\[RK338\].*save_freq of Backup"):
        fit(True, *callbacks)


@pytest.mark.slow
def test_ranks_that_would_not_save_together_are_told(
    rank_pool: RankPools, tmp_path: Path
) -> None:
    rank_pool(2).run(differing_worker, args=(str(tmp_path / "backup"),))
