"""What the ranks measure, in the logs that other callbacks write."""

from __future__ import annotations

import keras
import pytest
from support import training

import ring_keras as ring

STEPS = 6


def own_figures(epoch):
    """Seconds a step, and examples a second, by this rank's own steps."""
    # The first one was traced.
    steps = ring.stats().steps[-STEPS + (epoch == 0) :]
    seconds = sum(step.duration_s for step in steps)
    return seconds / len(steps), sum(step.examples for step in steps) / seconds


def logs_worker():
    """A callback after it, and one before it, of two epochs on uneven data."""
    data = training.dataset(STEPS * training.BATCH * ring.size() - 1)
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    seen, early, own = [], [], []
    training.fit(
        model,
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        epochs=2,
        validation_data=training.dataset(8).batch(4),
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: early.append(set(logs))
            ),
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.RingMetrics(),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: (
                    seen.append(dict(logs)),
                    own.append(own_figures(epoch)),
                )
            ),
        ],
    )
    return (
        [{k: v for k, v in logs.items() if "ring/" in k} for logs in seen],
        early,
        own,
    )


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_figures_of_all_ranks_are_in_the_logs_of_each(rank_pool, size) -> None:
    results = rank_pool(size).run(logs_worker)

    of_epochs, early, _ = results[0]
    assert all(logs == of_epochs for logs, *_ in results)
    assert not any("ring/duration_s" in keys for keys in early)
    assert len(of_epochs) == 2
    for epoch, logs in enumerate(of_epochs):
        of_ranks = [own[epoch] for *_, own in results]
        mean = sum(seconds for seconds, _ in of_ranks) / size
        assert logs["ring/duration_s"] == pytest.approx(mean, rel=1e-3)
        parts = ("compute_s", "input_s", "wait_s", "exposed_s")
        whole = sum(logs[f"ring/{part}"] for part in parts)
        assert whole == pytest.approx(logs["ring/duration_s"], rel=1e-3)
        assert 0 < logs["ring/scaling_efficiency"] <= 1
        rates = [logs[f"ring/examples_per_s/rank_{rank}"] for rank in range(size)]
        assert sum(rates) == pytest.approx(logs["ring/examples_per_s"])
        assert rates == pytest.approx([rate for _, rate in of_ranks], rel=1e-3)
