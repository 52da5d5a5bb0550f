"""Learning rates as functions of the step."""

from __future__ import annotations

import pytest

from ring_keras.callbacks import LearningRateSchedule, LearningRateWarmup


def test_warmup_ramps_to_the_scaled_rate_and_then_stops():
    warmup = LearningRateWarmup(0.1, 10, scale=4)

    assert [warmup.learning_rate_at(step) for step in (0, 5, 10, 11)] == pytest.approx(
        [0.1, 0.25, 0.4, None]
    )


def test_warmup_counts_epochs():
    warmup = LearningRateWarmup(0.1, warmup_epochs=2.5, steps_per_epoch=4, scale=3)

    assert warmup.learning_rate_at(5) == pytest.approx(0.2)
    assert warmup.learning_rate_at(11) is None


def test_warmup_takes_one_length():
    for kwargs in ({}, {"warmup_steps": 3, "warmup_epochs": 1}):
        with pytest.raises(ValueError, match="either `warmup_steps` or"):
            LearningRateWarmup(0.1, **kwargs)
    with pytest.raises(ValueError, match="warmup_steps=0"):
        LearningRateWarmup(0.1, 0)


def test_schedule_applies_in_its_epochs():
    schedule = LearningRateSchedule(
        0.5, 0.1, start_epoch=1, end_epoch=3, steps_per_epoch=10, scale=2
    )

    rates = [schedule.learning_rate_at(step) for step in (9, 10, 29, 30)]

    assert rates == pytest.approx([None, 0.1, 0.1, None])


@pytest.mark.parametrize(("staircase", "epoch"), [(True, 2), (False, 2.75)])
def test_schedule_calls_the_multiplier_with_the_epoch(staircase, epoch):
    schedule = LearningRateSchedule(
        1.0, lambda e: e, staircase=staircase, steps_per_epoch=4, scale=1
    )

    assert schedule.learning_rate_at(11) == epoch


def test_schedule_refuses_no_epochs_and_unknown_steps():
    with pytest.raises(ValueError, match="end_epoch=2"):
        LearningRateSchedule(0.1, 1.0, start_epoch=2, end_epoch=2)
    with pytest.raises(ValueError, match="Pass steps_per_epoch"):
        LearningRateSchedule(0.1, 1.0, scale=1).learning_rate_at(0)
