"""Where a restart from a checkpoint continues in the data."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from support import checkpointed, training
from support.checkpointed import (
    StoppedError,
    StopsAfter,
    build,
    everything,
    steps_per_epoch,
    train,
)

import ring_keras as ring
from ring_keras.callbacks.background_write import wait_for_all_writes


class _Stops(StopsAfter):
    """Ends the epoch, and `fit`."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == self._steps:
            self.model.stop_training = True


def _of_unknown_length() -> tf.data.Dataset:
    return training.dataset(32).filter(lambda *_: True)


def unknown_length_worker(directory: str, stop: int) -> tuple[bool, list[int]]:
    def run(name: str, seed: int, *others: Any) -> tuple[bytes, list[int]]:
        model = build(seed=seed)
        # Four steps: one is due where the first epoch has ended, and nobody knows.
        data = ring.data.shard(_of_unknown_length()).batch(8 // ring.size())
        checkpoint = ring.callbacks.Checkpoint(f"{directory}/{name}", every=4)
        callbacks = [checkpoint, *others]
        history = model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return everything(model), history.epoch

    whole, _ = run("whole", 1)
    with pytest.raises(StoppedError):
        run("parts", 1, StopsAfter(stop))
    wait_for_all_writes()
    ring.barrier(name="all have written")
    resumed, epochs = run("parts", 9)
    return resumed == whole, epochs


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_an_epoch_of_unknown_length_is_over_after_its_last_step(
    rank_pool: Any, tmp_path: Any, size: int
) -> None:
    # Keras has counted one step more, in which the data ended.
    results = rank_pool(size).run(unknown_length_worker, args=(str(tmp_path), 6))

    assert results == [(True, [1])] * size


def stopped_worker(directory: str, stop: int) -> None:
    with pytest.raises(StoppedError):
        train(directory, StopsAfter(stop), every=3)
    wait_for_all_writes()


def refused_worker(directory: str) -> str:
    with pytest.raises(ValueError, match="RK682") as caught:
        train(directory, every=3)
    return str(caught.value)


@pytest.mark.slow
def test_a_step_of_another_number_of_ranks_is_no_place(
    rank_pool: Any, tmp_path: Any
) -> None:
    rank_pool(2).run(stopped_worker, args=(str(tmp_path), 4))

    for text in rank_pool(1).run(refused_worker, args=(str(tmp_path),)):
        assert "epoch 0 (the first is 0)" in text
        assert "after 3 steps of it by 2 ranks, with 8 steps in an epoch" in text
        assert "Here an epoch has 16 steps, on 1 ranks." in text


def next_epoch_worker(directory: str, saves: bool) -> Any:
    def data(resume: ring.data.Resume) -> tf.data.Dataset:
        return ring.data.shard(training.dataset(64), seed=1, resume=resume).batch(4)

    resume, seen = ring.data.Resume(), checkpointed.StepsOfEpochs()
    callbacks = [ring.callbacks.Checkpoint(directory), resume, seen]
    if saves:
        callbacks.append(StopsAfter(steps_per_epoch(ring.size()) + 1))
        with pytest.raises(StoppedError):
            build().fit(data(resume), epochs=2, verbose=0, callbacks=callbacks)
        wait_for_all_writes()
    else:
        build(seed=9).fit(data(resume), epochs=2, verbose=0, callbacks=callbacks)
    return seen.steps


@pytest.mark.slow
def test_the_next_epoch_is_that_of_any_number_of_ranks(
    rank_pool: Any, tmp_path: Any
) -> None:
    rank_pool(2).run(next_epoch_worker, args=(str(tmp_path), True))

    [steps] = rank_pool(1).run(next_epoch_worker, args=(str(tmp_path), False))

    assert steps == {1: 16}


def cut_worker(directory: str, *others: Any) -> tuple[int, dict[int, int]]:
    seen, model = checkpointed.StepsOfEpochs(), build()
    train(directory, seen, *others, model=model)
    return int(model.optimizer.iterations), seen.steps


@pytest.mark.slow
def test_an_epoch_that_was_cut_short_goes_on(rank_pool: Any, tmp_path: Any) -> None:
    rank_pool(2).run(cut_worker, args=(str(tmp_path), _Stops(5)))
    # New processes take the checkpoint of a `fit` that has ended, too.
    rank_pool(2).kill()
    results = rank_pool(2).run(cut_worker, args=(str(tmp_path),))

    # Callbacks hear of the batches that are read and discarded.
    assert results == [(16, {0: 8, 1: 8})] * 2
