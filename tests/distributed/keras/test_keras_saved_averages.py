"""Averages that would be saved as the weights from which training continues."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
from support import training
from support.rank_pool import RankPools

import ring_keras as ring


def swapped_worker(path: str) -> None:
    def listed(*callbacks: keras.callbacks.Callback, shard_state: bool) -> None:
        optimizer = keras.optimizers.SGD(0.1, use_ema=True)
        optimizer = ring.DistributedOptimizer(optimizer, shard_state=shard_state)
        model = training.compile_model(training.build(3), optimizer)
        data = ring.data.shard(training.dataset(16))
        training.fit(model, data, 4, epochs=2, callbacks=list(callbacks))

    def swaps() -> keras.callbacks.Callback:
        return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    backup = keras.callbacks.BackupAndRestore
    text = r"\[RK516\] BackupAndRestore would save .* List BackupAndRestore before it"
    for shard_state in (False, True):
        with pytest.raises(ring.RingKerasError, match=text):
            listed(swaps(), backup(path), shard_state=shard_state)
        listed(backup(path), swaps(), shard_state=shard_state)
        # The weights are in the model then.
        listed(swaps(), backup(path, save_freq=2), shard_state=shard_state)
    with pytest.raises(ring.RingKerasError, match=text):
        listed(swaps(), ring.callbacks.RootOnly(backup(path)), shard_state=False)


@pytest.mark.slow
def test_backups_of_averages_are_refused(rank_pool: RankPools, tmp_path: Path) -> None:
    rank_pool(2).run(swapped_worker, args=(str(tmp_path / "backup"),), timeout_s=120)
