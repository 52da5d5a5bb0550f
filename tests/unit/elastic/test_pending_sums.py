"""Sums that count for more where a rank comes that has none."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.elastic import pending_sums


class FirstOf:
    """The first rank of several, of which the others are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pending_sums, "rank", lambda: 0)
        monkeypatch.setattr(pending_sums, "size", lambda: self.size)
        monkeypatch.setattr(
            pending_sums._native, "allgather", lambda array, name: array
        )
        self.size = 1
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        self.optimizer = ring.DistributedOptimizer(
            keras.optimizers.SGD(gradient_accumulation_steps=4)
        )
        self.model.compile(self.optimizer, "mse")
        self.optimizer.build(self.model.trainable_variables)
        self.sums = pending_sums.PendingSums([self.optimizer])

    def has_taken(self, steps: int) -> None:
        internals.iterations(self.optimizer).assign(steps)

    def meets(self, *others: list[float]) -> float:
        """What its sums are afterwards, of which each was 1."""
        self.size = 1 + len(others)
        self.sums.go_on([self.said(), *others], 0)
        values = [v.numpy() for v in internals.accumulators([self.optimizer])]
        (value,) = {float(one) for value in values for one in np.ravel(value)}
        return value

    def said(self) -> list[float]:
        (own,) = self.sums.gather(is_new=False)
        return list(own)


def test_the_mean_is_that_of_ranks_with_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    first = FirstOf(monkeypatch)
    first.has_taken(5)
    for variable in internals.accumulators([first.optimizer]):
        variable.assign(np.ones(variable.shape))

    assert first.meets([5, 1, 1]) == 1.0
    # Ranks come that have none.
    assert first.meets([5, 1, 1], [0, 0, 0]) == 1.5
    first.sums.save()
    assert first.meets([5, 1.5, 1], [5, 0, 1], [0, 0, 0]) == 2.0
    # One of these is lost again, and one has missed a pass.
    assert first.meets([5, 2, 1], [5, 0, 1]) == 1.5
    assert first.meets([4, 1.5, 1], [5, 0, 1]) == 3.0
    assert first.said() == [5, 3, 1]
    first.sums.restore()
    assert first.said() == [5, 1.5, 1]
    first.has_taken(9)
    assert first.said() == [9, 1, 1]
    first.has_taken(12)
    assert first.meets([12, 1, 1]) == 0.0


def test_who_has_come_since_keeps_its_own_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joiner = FirstOf(monkeypatch)
    joiner.size = 3
    joiner.sums.go_on([[5, 0, 0], [5, 1, 1], [5, 1, 1]], 1)
    joiner.has_taken(6)
    for variable in internals.accumulators([joiner.optimizer]):
        variable.assign(np.ones(variable.shape))
    assert joiner.said() == [6, 0, 1]

    # The mean of three ranks, where there are four.
    assert joiner.meets([6, 1.5, 1], [6, 1.5, 1], [0, 0, 0]) == pytest.approx(4 / 3)
