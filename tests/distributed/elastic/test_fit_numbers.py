"""What a `fit` computes while real processes are killed, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support.elastic_fit import (
    ADAM,
    AVERAGED,
    DECAY,
    DIES_AND_IS_REPLACED,
    FIT,
    HALF,
    REPLACED,
    fit,
)
from support.ringrun import Ringrun


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        HALF,
        {**HALF, "optimizer": ADAM.format("gradient_accumulation_steps=3")},
        {**HALF, "optimizer": "keras.optimizers.Nadam(0.125)"},
        {"optimizer": ADAM.format(AVERAGED)},
        {"optimizer": ADAM.format(DECAY)},
        {"optimizer": ADAM.format("gradient_accumulation_steps=3")},
        {"compile": {"jit_compile": True}},
        {"compile": {"steps_per_execution": 4}},
        {"count": 25},
    ],
    ids=[
        "half",
        "half_accumulation",
        "half_nadam",
        "ema",
        "schedule",
        "accumulation",
        "jit_compile",
        "steps_per_execution",
        "remainder",
    ],
)
def test_one_process_makes_the_same(ringrun: Ringrun, case: dict[str, Any]) -> None:
    case = {**case, **DIES_AND_IS_REPLACED}

    (first, second), _ = fit(ringrun, *REPLACED, ends=[1, 2], **case)

    # An epoch of two ranks has 6 steps.
    assert 1 in first["sizes"]
    assert first["sizes"][-6:] == [2] * 6
    assert first["digest"] == second["digest"]


_SEVERAL = (
    "keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap("
    "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4),"
    "{'adds': keras.optimizers.SGD(0.25, gradient_accumulation_steps=4)}))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)",
        pytest.param(
            _SEVERAL,
            marks=pytest.mark.skipif(
                not hasattr(keras.optimizers, "MultiOptimizer"),
                reason="this Keras has none",
            ),
        ),
    ],
    ids=["one", "several"],
)
def test_who_joins_leaves_the_mean_of_the_others(
    ringrun: Ringrun, optimizer: str
) -> None:
    case = {**DIES_AND_IS_REPLACED, "deaths": [[0, 3]], "op": "Average"}
    case |= {"count": 20, "epochs": 3}

    (first, second), _ = fit(
        ringrun, *REPLACED, ends=[1, 2], optimizer=optimizer, **case
    )

    # Two of the first ten steps wait for the second epoch, where another rank joins.
    assert first["sizes"] == [1] * 10 + [2] * 10
    assert first["digest"] == second["digest"]


@pytest.mark.slow
def test_an_update_that_was_missed_is_not_added_up_again(ringrun: Ringrun) -> None:
    # An epoch has 5 steps: one waits for the next epoch's first.
    accumulates = ADAM.format("gradient_accumulation_steps=2")

    fit(ringrun, ends=[0, 1], count=20, optimizer=accumulates, interrupted=[1, 6])


@pytest.mark.slow
def test_what_is_padded_counts_once_an_epoch(ringrun: Ringrun) -> None:
    counts = "keras.optimizers.SGD(1.0)"
    case: dict[str, Any] = {"count": 17, "op": "Average", "optimizer": counts}
    # When 16 are done one is left, for three ranks.
    case |= {"remainder": "pad", "deaths": [[0, 2], [1, 3]], "compared": False}

    (end, _), _ = fit(ringrun, size=4, ends=[2, 3], **case)

    assert end["sizes"] == [4, 4, 3, 2, 2, 2, 2, 2]
    assert np.round(end["kernel"], 5).tolist() == [2.0] * 17


@pytest.mark.slow
def test_callbacks_of_two_fits_agree(ringrun: Ringrun) -> None:
    watching = [
        "keras.callbacks.EarlyStopping('level', 0.1, 9, mode='min')",
        "keras.callbacks.ReduceLROnPlateau("
        "'level', 0.5, 2, mode='min', min_delta=0.1, cooldown=1)",
        "keras.callbacks.ModelCheckpoint("
        "str(here / f'{number}.keras'), 'level', mode='min', save_best_only=True)",
        "ring.callbacks.RootOnly(keras.callbacks.CSVLogger(here / 'log', append=True))",
    ]
    levels = [[4.0, 3.0, 2.0], [6.0, 5.95, 5.95]]
    case: dict[str, Any] = {
        "callbacks": watching,
        "levels": levels,
        "fits": 2,
        "epochs": 3,
    }
    case |= {"deaths": [[0, 4]], "waits_in": [1, 1], "compared": False}

    (first, second), _ = fit(ringrun, *REPLACED, ends=[1, 2], scale="linear", **case)

    assert first["states"] == second["states"]
    stopping, plateau, checkpoint, _ = first["states"]
    assert (stopping["best"], stopping["wait"]) == (6.0, 2)
    assert plateau["cooldown_counter"] == 1
    assert checkpoint["best"] == 2.0
    assert first["rate"] == second["rate"] == pytest.approx(0.0005)
    # The rank that was the first is lost; in the second fit another one is.
    _, *rows = (ringrun.directory / "log").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["0", "1", "2"]


@pytest.mark.slow
def test_scaling_does_not_change_what_a_ramp_sets(ringrun: Ringrun) -> None:
    case: dict[str, Any] = {
        "optimizer": "keras.optimizers.SGD(0.5, momentum=0.5)",
        "compared": False,
    }
    ramp = "ring.callbacks.LearningRateWarmup(0.5, 8)"
    case |= {"callbacks": [ramp], "deaths": [[0, 4]]}

    digests = {
        fit(ringrun, ends=[1], scale=scale, **case)[0][0]["digest"]
        for scale in (None, "linear")
    }

    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "case"),
    [
        # Up to as many times the rate as there are ranks when it is made.
        ("optimizers", {"optimizer": ADAM.format("ring.schedules.Warmup(0.125, 4)")}),
        ("data", {"batch": "4 // ring.size()"}),
    ],
)
def test_what_follows_from_the_number_of_ranks_is_refused(
    ringrun: Ringrun, what: str, case: dict[str, Any]
) -> None:
    case = {**case, "waits_in": [0, 0], "late": [1], "compared": False}

    _, said = fit(ringrun, *REPLACED, size=1, ends=[0], **case)

    assert f"rank 1 has other {what} than those that train already" in said


@pytest.mark.slow
def test_weights_that_differ_are_found_in_an_epoch(ringrun: Ringrun) -> None:
    sets = (
        "keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: "
        "model.optimizer.learning_rate.assign(0.125 + number // 2))"
    )
    # Of five epochs, all but the second have several ranks.
    case: dict[str, Any] = {"callbacks": [sets], "epochs": 5, "deaths": [[0, 6]]}

    _, said = fit(ringrun, *REPLACED, ends=[], code=1, waits_in=[0, 2], **case)

    assert "after the first epoch with other ranks, variable" in said


@pytest.mark.slow
def test_what_the_others_do_not_answer_is_refused(ringrun: Ringrun) -> None:
    asks = "ring.allreduce(tf.ones(1), name='asks')"
    case: dict[str, Any] = {"asks": asks, "waits_in": [0, 0], "late": [1]}

    _, said = fit(ringrun, *REPLACED, size=1, ends=[0], **case)

    assert "communicate with them before it enters their fit()" in said


@pytest.mark.slow
def test_the_best_model_outlives_who_has_saved_it(ringrun: Ringrun) -> None:
    best = (
        "ring.callbacks.BestModelCheckpoint("
        "'level', mode='min', filepath=str(here / 'best.keras'))"
    )
    case: dict[str, Any] = {"callbacks": [best], "levels": [[1.0, 2.0]]}

    (end,), _ = fit(ringrun, ends=[1], deaths=[[0, 8]], **case)

    assert end["states"][0]["best"] == 1.0


@pytest.mark.slow
def test_a_rate_is_scaled_once_where_a_rank_is_lost_at_the_beginning(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    optimizer = "keras.optimizers.SGD(0.5, momentum=0.5)"
    case: dict[str, Any] = {"optimizer": optimizer, "compared": False}
    case |= {"callbacks": [f"ring.callbacks.Checkpoint({str(tmp_path)!r})"]}
    fit(ringrun, ends=[0, 1], epochs=1, **case)

    ends, _ = fit(
        ringrun,
        size=3,
        ends=[0, 1],
        scale="linear",
        # When all have restored what two ranks had, and scaled the rate.
        dies_where_fit_begins=[2],
        **case,
    )

    # The script compares the ranks' variables.
    assert [end["rate"] for end in ends] == [0.5, 0.5]


@pytest.mark.slow
def test_a_rate_is_scaled_once_where_a_rank_is_lost_before_all_begin(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    optimizer = "keras.optimizers.SGD(0.5, momentum=0.5)"
    case: dict[str, Any] = {"optimizer": optimizer, "compared": False}
    checkpoint = f"ring.callbacks.Checkpoint({str(tmp_path / 'parts')!r})"
    fit(ringrun, ends=[0, 1], epochs=1, callbacks=[checkpoint], **case)

    # The first rank has restored, and nobody else.
    dies = (
        "keras.callbacks.LambdaCallback(on_train_begin=lambda logs: "
        "number == 2 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    callbacks = [checkpoint, dies]
    ends, _ = fit(
        ringrun, size=3, ends=[0, 1], scale="linear", callbacks=callbacks, **case
    )

    # The script compares the ranks' variables.
    assert [end["rate"] for end in ends] == [0.5, 0.5]


@pytest.mark.slow
def test_an_accumulation_goes_on_after_a_restart(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    # An epoch has 6 steps, so two of them wait for the next one.
    optimizer = "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)"
    case: dict[str, Any] = {"optimizer": optimizer, "op": "Average", "compared": False}

    def saves(name: str) -> dict[str, Any]:
        return {
            **case,
            "callbacks": [f"ring.callbacks.Checkpoint({str(tmp_path / name)!r})"],
        }

    whole, _ = fit(ringrun, ends=[0, 1], **saves("whole"))
    killed = {**saves("parts"), "deaths": [[0, 11], [1, 11]]}
    script = FIT.replace("CASE", repr(json.dumps(killed)))
    job = ringrun.start(script, "--min-np", "1", size=2)
    assert ringrun.finish(job, 240).returncode != 0
    resumed, _ = fit(ringrun, ends=[0, 1], **saves("parts"))

    assert [len(end["sizes"]) for end in whole] == [12, 12]
    assert [end["digest"] for end in resumed] == [end["digest"] for end in whole]


# After 8 steps of 2 ranks: an epoch has 6.
_CHECKPOINT = [
    "ring.callbacks.Checkpoint(here / 'parts', every=4)",
    "keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: "
    "steps() == 9 and wait_until(lambda: 8 in [its.steps for its in "
    "CheckpointFiles(here / 'parts').complete()], 'the checkpoint'))",
]


# The script trains the examples after the checkpoint anew, each once in the epoch.
@pytest.mark.slow
@pytest.mark.parametrize(("size", "shard"), [(1, False), (2, False), (3, True)])
def test_a_restart_goes_on_within_an_epoch(
    ringrun: Ringrun, size: int, shard: bool
) -> None:
    case: dict[str, Any] = {"callbacks": _CHECKPOINT, "shard": shard}
    fit(ringrun, ends=[], code=137, deaths=[[0, 10], [1, 10]], **case)

    done = [[0, 0, 2]] * 6 + [[0, 1, 2]] * 2
    ends, said = fit(ringrun, size=size, ends=[*range(size)], done=done, **case)

    assert "RK657" not in said
    # Of the epoch's 24 examples 8 were done, in two steps.
    rest = {1: 8, 2: 4, 3: 3}[size]
    assert {tuple(end["sizes"]) for end in ends} == {(2,) * 8 + (size,) * rest}


@pytest.mark.slow
def test_a_restart_goes_on_where_a_rank_is_lost_at_its_beginning(
    ringrun: Ringrun,
) -> None:
    case: dict[str, Any] = {"callbacks": _CHECKPOINT}
    fit(ringrun, ends=[], code=137, deaths=[[0, 10], [1, 10]], **case)

    case |= {"done": [[0, 0, 2]] * 6 + [[0, 1, 2]] * 2, "dies_where_fit_begins": [2]}
    ends, _ = fit(ringrun, size=3, ends=[0, 1], **case)

    assert {tuple(end["sizes"]) for end in ends} == {(2,) * 12}


@pytest.mark.slow
def test_a_restart_goes_on_where_a_rank_is_lost_and_replaced(ringrun: Ringrun) -> None:
    case: dict[str, Any] = {"callbacks": _CHECKPOINT}
    fit(ringrun, ends=[], code=137, deaths=[[0, 10], [1, 10]], **case)

    done = [[0, 0, 2]] * 6 + [[0, 1, 2]] * 2
    case |= {"deaths": [[0, 8]], "done": done, "waits_in": [0, 1], "late": [2]}
    ends, _ = fit(ringrun, *REPLACED, ends=[1, 2], **case)

    assert ends[0]["sizes"][:9] == [2] * 8 + [1]
    assert ends[0]["sizes"][-1] == 2
    assert ends[0]["digest"] == ends[1]["digest"]


@pytest.mark.slow
def test_a_checkpoint_within_an_update_waits_for_its_end(ringrun: Ringrun) -> None:
    optimizer = "keras.optimizers.SGD(0.5, gradient_accumulation_steps=3)"
    case: dict[str, Any] = {"callbacks": _CHECKPOINT, "optimizer": optimizer}
    case["callbacks"] = [text.replace("8 in", "9 in") for text in _CHECKPOINT]
    case |= {"op": "Average", "compared": False}
    whole, _ = fit(ringrun, ends=[0, 1], **{**case, "callbacks": []})
    fit(ringrun, ends=[], code=137, deaths=[[0, 11], [1, 11]], **case)

    ends, said = fit(ringrun, ends=[0, 1], **case)

    assert "RK657" not in said
    assert [end["digest"] for end in ends] == [end["digest"] for end in whole]
