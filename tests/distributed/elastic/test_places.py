"""Where a restart continues in the data of an epoch whose ranks have changed."""

from __future__ import annotations

from typing import Any

import pytest
from support.elastic_fit import fit
from support.ringrun import Ringrun


def _saving(every: int | str, step: int) -> dict[str, Any]:
    """What has a checkpoint of so many steps be complete before the step after it."""
    return {
        "callbacks": [
            f"ring.callbacks.Checkpoint(here / 'parts', every={every!r})",
            "keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: "
            f"steps() == {step + 1} and wait_until(lambda: {step} in [its.steps for "
            "its in CheckpointFiles(here / 'parts').complete()], 'the checkpoint'))",
        ]
    }


# In place of `Elastic`.
_RESUME = {"elastic": "ring.data.Resume()"}


@pytest.mark.slow
def test_resume_does_not_guess_a_place_among_other_ranks(ringrun: Ringrun) -> None:
    case = _saving(4, 8)
    # An epoch of two ranks has 6 steps; this one has 2 of them, and 8 of one rank.
    fit(ringrun, ends=[], code=137, deaths=[[0, 2], [1, 9]], **case)

    for size in (1, 2):
        _, said = fit(ringrun, size=size, ends=[], code=1, **_RESUME, **case)
        assert "ValueError: [RK682] ring_keras.data.Resume cannot continue in" in said
        assert "epoch 0 (the first is 0): the checkpoint was made after 8 steps" in said
        assert "ranks had changed in it (ring_keras.callbacks.Elastic)" in said


@pytest.mark.slow
def test_resume_begins_the_epoch_after_one_whose_ranks_have_changed(
    ringrun: Ringrun,
) -> None:
    case = _saving("epoch", 10)
    fit(ringrun, ends=[], code=137, deaths=[[0, 2], [1, 11]], **case)

    done = [[0, 0, 2]] * 2 + [[0, 0, 1]] * 8
    # The script compares to one process that trains on each item once in an epoch.
    ends, _ = fit(ringrun, ends=[0, 1], done=done, **_RESUME, **case)

    assert [end["sizes"] for end in ends] == [[2] * 2 + [1] * 8 + [2] * 6] * 2


@pytest.mark.slow
def test_data_of_another_length_are_not_gone_on_with(ringrun: Ringrun) -> None:
    case = _saving(4, 4)
    fit(ringrun, ends=[], code=137, items=20, deaths=[[0, 6], [1, 6]], **case)

    _, said = fit(ringrun, ends=[], code=1, **case)

    for place in (0, 1):
        assert f"[{place}] ValueError: [RK683] ring_keras.callbacks.Elastic" in said
    assert "data with 20 items" in said and "data with 24 items" in said
