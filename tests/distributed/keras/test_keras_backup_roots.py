"""Which rank saves and restores a backup, and whose state all ranks take."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from support import checkpointed, training
from support.checkpointed import StoppedError, StopsAfter
from support.rank_pool import RankPools

import ring_keras as ring
from ring_keras.callbacks.background_write import wait_for_all_writes

COUNT = 62
STEPS = 8  # Of an epoch of two ranks.


def fit(
    *callbacks: keras.callbacks.Callback, shard_state: bool, seed: int = 3
) -> bytes:
    """The weights after it, and what this rank has of the optimizer's state."""
    keras.utils.set_random_seed(1)
    resume = ring.data.Resume()
    data = ring.data.shard(training.dataset(COUNT), seed=1, resume=resume)
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.Adam(0.01), shard_state=shard_state
    )
    model = training.compile_model(training.build(seed + ring.rank()), optimizer)
    listed = [*callbacks, resume]
    training.fit(model, data, training.BATCH, epochs=3, callbacks=listed)
    return checkpointed.in_file(model)


def root_worker(directory: Path, shard_state: bool, given: int | None) -> bool:
    """Rank 1 saves and restores, as the backup or the `fit` says."""

    def train(*more: keras.callbacks.Callback, seed: int = 3) -> bytes:
        # Each host has a disk of its own.
        disk = directory / f"disk-{ring.rank()}"
        options = {} if given is None else {"root_rank": given}
        backup = ring.callbacks.Preemption(disk, **options)
        # None says whose state all take; else the backup does.
        root = [ring.callbacks.Distributed(root_rank=1)] if given is None else []
        callbacks = [backup, *root, *more]
        return fit(*callbacks, shard_state=shard_state, seed=seed)

    whole = train()
    with pytest.raises(StoppedError):
        train(StopsAfter(STEPS + 3))
    wait_for_all_writes()
    ring.barrier(name="saved")
    found = {path.parent.name for path in directory.glob("disk-*/step-*.json")}
    assert found == {"disk-1"}
    ring.barrier(name="looked")
    # Nothing is left of the weights with which the first one began.
    return train(seed=9) == whole


@pytest.mark.slow
@pytest.mark.parametrize("shard_state", [False, True])
@pytest.mark.parametrize("given", [1, None])
def test_all_ranks_take_the_state_of_the_rank_that_restores(
    rank_pool: RankPools, tmp_path: Path, shard_state: bool, given: int | None
) -> None:
    arguments = (tmp_path, shard_state, given)
    results = rank_pool(2).run(root_worker, args=arguments, timeout_s=120)

    assert results == [True, True]


def two_roots_worker(directory: Path) -> list[str]:
    texts = []
    for named in (
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.Distributed(root_rank=0),
    ):
        backup = ring.callbacks.Preemption(directory, root_rank=1)
        with pytest.raises(ValueError, match=r"\[RK524\]") as caught:
            fit(named, backup, shard_state=False)
        texts.append(str(caught.value))
    return texts


def test_two_roots_are_refused_on_all_ranks(
    rank_pool: RankPools, tmp_path: Path
) -> None:
    for texts in rank_pool(2).run(two_roots_worker, args=(tmp_path,)):
        for text in texts:
            assert "on rank 1, and all ranks" in text
            assert "of rank 0. Leave root_rank out of Preemption" in text
