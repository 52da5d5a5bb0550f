"""A backup, and a checkpoint that is newer, of a state that the ranks divide."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras
import pytest
from support import checkpointed
from support.rank_pool import RankPools
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.callbacks.background_write import wait_for_all_writes

STEPS = 8  # Of an epoch of two ranks.

BACKUPS: dict[str, Any] = {
    "Preemption": ring.callbacks.Preemption,
    "BackupAndRestore": keras.callbacks.BackupAndRestore,
}


class IsKilled(keras.callbacks.Callback):
    """With all ranks, when what has been saved by then is on the disk."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if internals.steps_done_of(self.model) == STEPS + 5:
            wait_for_all_writes()
            ring.barrier(name="written")
            os.kill(os.getpid(), signal.SIGKILL)


def train_with_both(directory: str, name: str, *others: Any, seed: int = 1) -> bytes:
    """A backup at the end of each epoch, and checkpoints in its steps."""
    return checkpointed.train(
        f"{directory}/parts",
        *others,
        model=checkpointed.build(seed=seed, shard_state=True),
        before=[BACKUPS[name](f"{directory}/backup")],
        every=3,
    )


def killed_worker(directory: str, name: str) -> None:
    ring.init()
    train_with_both(directory, name, IsKilled())


def newer_worker(directory: str, name: str) -> bool:
    model = checkpointed.build(shard_state=True)
    whole = checkpointed.train(f"{directory}/whole", model=model, every=3)
    return train_with_both(directory, name, seed=9) == whole


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKUPS)
def test_a_newer_checkpoint_takes_the_place_of_a_backup(
    rank_pool: RankPools, tmp_path: Path, name: str
) -> None:
    arguments = (str(tmp_path), name)
    outcomes = run_ranks(killed_worker, 2, args=arguments, timeout_s=120, check=False)
    # One of them, or both: the first one that dies may take the other with it.
    assert signal.SIGKILL in [outcome.signal for outcome in outcomes]
    assert list(tmp_path.glob("backup/*.weights.h5"))
    assert list(tmp_path.glob("parts/*step-000000000012*"))

    results = rank_pool(2).run(newer_worker, args=arguments, timeout_s=120)

    assert results == [True, True]
