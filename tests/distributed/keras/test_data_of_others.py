"""Data that were divided among other ranks, or for other epochs, than a `fit` has."""

from __future__ import annotations

import keras
import pytest
from support import training
from support.log_texts import LogTexts

import ring_keras as ring


def sets_worker():
    """What two of three ranks say of data of all, and of their own."""
    mine = ring.add_process_set([0, 1])
    of_all = ring.data.shard(training.dataset(24)).batch(2)
    said = []
    if mine.included():
        own = ring.data.shard(training.dataset(24), process_set=mine).batch(2)
        for data, tested in [(of_all, None), (own, None), (own, of_all)]:
            model = training.build(1)
            optimizer = ring.DistributedOptimizer(
                keras.optimizers.SGD(0.1), process_set=mine
            )
            model.compile(optimizer, "binary_crossentropy")
            with LogTexts() as lines:
                model.fit(data, validation_data=tested, verbose=0)
            said.append([line for line in lines if "[RK521]" in line])
    ring.barrier()
    return said


def test_parts_on_ranks_that_do_not_train_are_told(rank_pool):
    first, second, third = rank_pool(3).run(sets_worker)

    (of_data,), of_own, (of_tests,) = first
    assert "its x was divided among ranks [0, 1, 2]: some of it is on" in of_data
    assert not of_own
    assert "its validation_data was divided among ranks [0, 1, 2]" in of_tests
    assert second == [[], [], []]
    assert third == []


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return tuple(array[4 * index : 4 * index + 4] for array in training.arrays())


def short_epochs_worker():
    """Epochs that end within the data, which have another order in each."""
    model = training.build(1)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "binary_crossentropy")
    options = {"steps_per_epoch": 2, "shuffle": False, "verbose": 0}
    with pytest.raises(ValueError) as caught:
        model.fit(ring.data.shard(Batches(), seed=1), **options)
    steps = int(model.optimizer.iterations)
    model.fit(ring.data.shard(Batches()), **options)  # In one order.
    return str(caught.value), steps


@pytest.mark.parametrize("size", [1, 2])
def test_short_epochs_of_batches_in_changing_order_are_refused(rank_pool, size):
    for text, steps in rank_pool(size).run(short_epochs_worker):
        assert text.startswith("[RK510] ring_keras.data.shard(seed=...) puts"), text
        assert steps == 0
