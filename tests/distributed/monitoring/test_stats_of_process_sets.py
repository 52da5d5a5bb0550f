"""The steps of a rank are those that it takes with the ranks that train its model."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest
import tensorflow as tf
from support.event_files import read
from support.rank_pool import RankPools
from support.slowed_training import BATCH, train

import ring_keras as ring
from ring_keras.monitoring import StepStats, records
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait
from ring_keras.optimizers.step_scope import reduction_step

TEAM = [0, 2]
STEPS, EPOCHS = 4, 2
SLEEP_S = 0.1


def trains_with_all_and_with_a_team(
    directory: str,
) -> tuple[int, list[tuple[StepStats, ...]]]:
    """The new steps of each `fit`: of all ranks, of the team, of all ranks."""
    team = ring.add_process_set(TEAM)
    assert team.process_set_id is not None
    number, found = team.process_set_id, []
    for name in ("all", "team", "all again"):
        before = ring.stats().totals.steps
        process_set = team if name == "team" else ring.global_process_set
        if process_set.included():
            train(
                Path(directory, name),
                steps=STEPS,
                slow_compute=2 if name == "team" else 1,
                seconds=SLEEP_S,
                process_set=process_set,
                update_freq=2,
            )
        seen = ring.stats()
        new = seen.totals.steps - before
        found.append(seen.steps[len(seen.steps) - new :])
    ring.barrier(name="all have trained")
    ring.remove_process_set(team)
    return number, found


@pytest.mark.slow
def test_a_team_has_steps_of_its_own(rank_pool: RankPools, tmp_path: Path) -> None:
    ranks = rank_pool(3).run(
        trains_with_all_and_with_a_team, args=(str(tmp_path),), timeout_s=120
    )
    count = STEPS * EPOCHS
    for rank, (number, (first, of_team, again)) in enumerate(ranks):
        for steps, process_set in ((first, 0), (of_team, number), (again, 0)):
            if steps is of_team and rank not in TEAM:
                assert steps == ()
                continue
            # One more where a plan was agreed on.
            assert count <= len(steps) <= count + 1
            assert {step.process_set for step in steps} == {process_set}
            numbers = [step.step for step in steps]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert [step.examples for step in steps[-count:]] == [BATCH] * count
            for step in steps:
                assert step.duration_s == pytest.approx(
                    step.input_s + step.compute_s + step.wait_s + step.exposed_s
                )
        # By its number in the job.
        if rank == 0:
            assert [step.last_rank for step in of_team[-STEPS + 1 :]] == [2] * (
                STEPS - 1
            )
            waited_s = sum(step.waited_for_s[2] for step in of_team)
            assert waited_s > (count - 2) * SLEEP_S / 2
            assert len(of_team[0].waited_for_s) == 3

    scalars, contents = read(tmp_path / "team" / "train")
    assert scalars["ring/duration_s"][-1][1] > SLEEP_S / 2
    assert scalars["ring/straggler_rank"][-1][1] == 2
    assert scalars["ring/examples_per_s/rank_2"][-1][1] > 0
    assert "ring/examples_per_s/rank_1" not in scalars
    rows = [rows for _, rows in contents[records.ROWS]]
    assert [[row["rank"] for row in of] for of in rows] == [TEAM] * len(rows)
    assert sum(of[0]["steps"] for of in rows) == count - 1  # The first one is traced.
    shown = [ranks for _, ranks in contents[records.STEPS]]
    assert len(shown) > 1
    for of_ranks in shown:
        assert [one["rank"] for one in of_ranks] == TEAM
        for one in of_ranks:
            names = [collective["name"] for collective in one["collectives"]]
            assert any(name.startswith("gradients/bucket") for name in names)


def reduce_over_all(number: tf.Tensor) -> tf.Tensor:
    """As who reduces gradients does."""
    with reduction_step(ring.global_process_set):
        return allreduce_wait(allreduce_start([number], "sum", name="of all"))[0]


class ReducesOverAllToo(keras.Sequential):
    def train_step(self, data: object) -> object:
        logs = super().train_step(data)
        return {**logs, "ranks": reduce_over_all(tf.ones([]))}


def steps_among_others_collectives(jit_compile: bool) -> tuple[int, int, set[int]]:
    """A model of a team, in whose step something goes to all ranks."""
    team = ring.add_process_set(TEAM)
    assert team.process_set_id is not None
    number = team.process_set_id
    before = ring.stats().totals.steps
    if team.included():
        model = ReducesOverAllToo([keras.layers.Dense(1)])
        optimizer = ring.DistributedOptimizer(
            keras.optimizers.SGD(0.01), process_set=team
        )
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        x = tf.ones([8 * STEPS, 3])
        callbacks = [ring.callbacks.BroadcastGlobalVariables()]
        model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=callbacks)
    else:
        for _ in range(STEPS):
            reduce_over_all(tf.ones([]))
    seen = ring.stats()
    ring.remove_process_set(team)
    count = seen.totals.steps - before
    new = seen.steps[len(seen.steps) - count :]
    return number, count, {step.process_set for step in new}


@pytest.mark.parametrize(
    "jit_compile",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["graph", "xla"],
)
def test_other_reductions_are_no_steps_of_the_team(
    rank_pool: RankPools, jit_compile: bool
) -> None:
    ranks = rank_pool(3).run(steps_among_others_collectives, args=(jit_compile,))
    for rank, (number, count, process_sets) in enumerate(ranks):
        # One more where a plan was agreed on.
        assert count == (STEPS + 1 if rank in TEAM else STEPS)
        assert process_sets == {number if rank in TEAM else 0}
