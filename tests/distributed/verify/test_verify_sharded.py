"""`ring verify` where the ranks divide an optimizer's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from support import training
from support.run_ranks import run_ranks
from support.sharded_models import MAKERS, build, initialized, needs_several

import ring_keras as ring

NOTE = "the ranks divide the optimizer's state (shard_state=True)"


def verified(make: Callable[[], Any], op: str = "average") -> Any:
    def train() -> None:
        model = build(1 + ring.rank())
        optimizer = ring.DistributedOptimizer(make(), op=op, shard_state=True)
        training.compile_model(model, optimizer)
        # The last of the steps is uneven.
        data = training.dataset(training.steps_of(4, ring.size()))
        mine = ring.data.shard(data, remainder="keep")
        training.fit(model, mine, training.BATCH)

    return ring.verify.compare(train, steps=4)


def verify_worker(names: list[str]) -> list[str]:
    for name in names:
        comparison = verified(MAKERS[name])
        assert comparison.findings == [], (name, comparison.findings)
        assert any(NOTE in note for note in comparison.notes)
    if "sgd" not in names:  # To others the length of a gradient is little.
        return []
    return verified(MAKERS["sgd"], op="sum").findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ["clipnorm"]),
        pytest.param(
            3,
            ["adam", "averages_taken", "accumulation", "loss_scaled", "nadam"],
            marks=pytest.mark.slow,
        ),
        pytest.param(2, ["sgd", "adafactor"], marks=pytest.mark.slow),
        pytest.param(2, ["sgd", "several"], marks=[pytest.mark.slow, needs_several]),
    ],
)
def test_a_divided_state_is_compared_with_one_process(
    size: int, names: list[str]
) -> None:
    texts = run_ranks(initialized, size, args=(verify_worker, names), timeout_s=300)

    assert all(theirs == texts[0] for theirs in texts)
    if "sgd" in names:
        assert "gradients are added up" in texts[0][0]


def differing_worker() -> list[str]:
    """The second rank updates its part in another way."""
    momentum = 0.9 - 0.4 * ring.rank()
    return verified(lambda: keras.optimizers.SGD(0.1, momentum=momentum)).findings


@pytest.mark.slow
def test_another_ranks_part_is_compared_too() -> None:
    """The first rank, which compares, has not had it."""
    for findings in run_ranks(initialized, 2, args=(differing_worker,), timeout_s=300):
        assert len(findings) == 1
        assert findings[0].startswith("step 2: ")  # The first one has no momentum.
