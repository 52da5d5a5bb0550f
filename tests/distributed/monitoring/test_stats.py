"""Where the time of the steps of a fit goes, by `ring.stats()`."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.processes import wait_until
from support.rank_pool import RankPools
from support.variants import variants

import ring_keras as ring
from ring_keras import _native
from ring_keras.monitoring import Stats, StepTotals

SLEEP_S = 0.1
BATCHES = 5
EPOCHS = 2


class SlowData(keras.utils.PyDataset):
    def __init__(self, slow: bool) -> None:
        super().__init__()
        self._slow = slow

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if self._slow:
            time.sleep(SLEEP_S)
        return np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)


class ComesLast(keras.callbacks.Callback):
    """The slow rank begins a step when the fast one has long stood still for it."""

    def __init__(self, directory: str, slow: bool) -> None:
        super().__init__()
        self._directory = directory
        self._slow = slow
        self._steps = 0

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self._steps += 1
        stands_still = Path(self._directory, f"step{self._steps}")
        if self._slow:
            wait_until(stands_still.exists, "the other rank stands still")
            time.sleep(SLEEP_S)
        else:
            threading.Thread(target=self._watch, args=(stands_still,)).start()

    def _watch(self, stands_still: Path) -> None:
        wait_until(self._waits, "this rank stands still")
        stands_still.touch()

    def _waits(self) -> bool:
        # After this number there are only those that are pending.
        return any(one["arrived_at"] for one in _native.recent_collectives(1 << 62))


def fits(slow_rank: int, directory: str) -> tuple[Stats, StepTotals]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    before = ring.stats().totals
    x = np.ones((8 * BATCHES, 3), np.float32)
    callbacks: list[keras.callbacks.Callback] = [
        ring.callbacks.BroadcastGlobalVariables(),
        ComesLast(directory, ring.rank() == slow_rank),
    ]
    model.fit(x, x[:, :1], batch_size=8, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return ring.stats(), before


def test_the_rank_that_is_slow_to_compute_is_named(
    rank_pool: RankPools, tmp_path: Path
) -> None:
    ranks = rank_pool(2).run(fits, args=(1, str(tmp_path)))
    steps = BATCHES * EPOCHS
    for rank, (seen, before) in enumerate(ranks):
        assert (seen.rank, seen.size) == (rank, 2)
        # One more where a plan was agreed on.
        assert seen.totals.steps - before.steps >= steps
        assert len(seen.steps) >= steps
        numbers = [step.step for step in seen.steps[-steps:]]
        assert numbers == list(range(numbers[0], numbers[0] + steps))
        for step in seen.steps[-steps:]:
            assert step.duration_s == pytest.approx(
                step.input_s + step.compute_s + step.wait_s + step.exposed_s
            )
            assert step.wait_s == pytest.approx(sum(step.waited_for_s))
            assert step.bytes > 0
            assert step.collectives > 0
            assert step.examples == 8
            assert step.began_at > time.time() - 3600
    fast, slow = (seen.steps[-steps:] for seen, _ in ranks)
    assert sum(step.compute_s for step in slow) > steps * SLEEP_S
    # For so long at least, however loaded the machine is. The wait before the first
    # step belongs to the one in which the plan was agreed on.
    assert sum(step.waited_for_s[1] for step in fast) > (steps - 1) * SLEEP_S
    assert {step.last_rank for step in fast[1:]} == {1}


def fits_slow_data(slow_rank: int, options: dict[str, object]) -> Stats:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", **options)
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    data = SlowData(ring.rank() == slow_rank)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return ring.stats()


@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": False},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        pytest.param(
            {"jit_compile": False, "steps_per_execution": BATCHES},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["graph", "xla", "steps_per_execution"],
)
def test_the_rank_with_slow_data_is_named(
    rank_pool: RankPools, options: dict[str, object]
) -> None:
    fast, slow = (
        seen.steps[-BATCHES * EPOCHS :]
        for seen in rank_pool(2).run(fits_slow_data, args=(1, options))
    )
    # The first batches of an epoch may have been read ahead.
    assert sum(step.input_s for step in slow) > EPOCHS * (BATCHES - 2) * SLEEP_S / 2
    assert sum(step.input_s for step in slow) > sum(step.input_s for step in fast)
    # Of the median, because a rank that compiles is waited for as well.
    waited = statistics.median(step.waited_for_s[1] for step in fast)
    assert waited > statistics.median(step.waited_for_s[0] for step in slow)


def loops_over_slow_data() -> tuple[float, float, float]:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 3))
    for x, y in ring.monitoring.timed(SlowData(True)[i] for i in range(BATCHES)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = ring.DistributedGradientTape(tape)
        tape.gradient(loss, model.trainable_variables)
    steps = ring.stats().steps[-BATCHES + 1 :]
    return (
        sum(step.input_s for step in steps),
        sum(step.duration_s for step in steps),
        sum(step.examples for step in steps),
    )


def test_a_loop_of_ones_own(rank_pool: RankPools) -> None:
    for input_s, duration_s, examples in rank_pool(2).run(loops_over_slow_data):
        assert (BATCHES - 1) * SLEEP_S < input_s < duration_s
        assert examples == 8 * (BATCHES - 1)


ROWS = 60  # 8 batches a rank, the last one short.


def counts_examples(kind: str) -> float:
    """How many examples this rank's steps have had, of `ROWS` on two ranks."""
    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.SGD(
        0.01, gradient_accumulation_steps=2 if kind == "accumulation" else None
    )
    passes = 2 if kind == "passes" else 1
    sum_of_ranks = ring.Sum if kind == "sum" else ring.Average
    batch_size = 1 if kind == "one row" else 4
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        ring.DistributedOptimizer(
            optimizer, op=sum_of_ranks, backward_passes_per_step=passes
        ),
        "mse",
        jit_compile=kind == "xla",
        steps_per_execution=2 if kind == "executions" else 1,
    )
    x = np.ones((ROWS - 1 if kind in ("padded", "xla") else ROWS, 3), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    data = ring.data.shard(data, remainder="pad").batch(batch_size)
    before = ring.stats().totals.examples
    model.fit(data, verbose=0, callbacks=[ring.callbacks.BroadcastGlobalVariables()])
    return ring.stats().totals.examples - before


@pytest.mark.parametrize(
    "kind",
    variants(
        ["plain", "padded"],
        ["accumulation", "passes", "sum", "one row", "xla", "executions"],
    ),
)
def test_examples_are_the_rows_of_the_batches(rank_pool: RankPools, kind: str) -> None:
    counted = rank_pool(2).run(counts_examples, args=(kind,))

    assert sum(counted) == (ROWS - 1 if kind in ("padded", "xla") else ROWS)


def waits_outside_of_steps() -> tuple[int, int]:
    """Steps that are counted, without and with a collective under way."""
    for _ in range(3):
        with tf.GradientTape() as tape:
            weight = tf.Variable(1.0)
            loss = weight * 2.0
        ring.DistributedGradientTape(tape).gradient(loss, [weight])
    alone = ring.stats().totals.steps
    if ring.rank() == 0:
        waits = threading.Thread(target=_native.barrier, args=("outside",))
        waits.start()
        wait_until(lambda: _native.recent_collectives(1 << 62) != [], "it waits")
    beside = ring.stats().totals.steps
    ring.barrier(name="seen")
    if ring.rank() == 0:
        waits.join()
    else:
        _native.barrier("outside")
    return alone, beside


def test_what_is_under_way_outside_of_steps_leaves_none_out(
    rank_pool: RankPools,
) -> None:
    for alone, beside in rank_pool(2).run(waits_outside_of_steps):
        assert alone == beside


def test_needs_a_job() -> None:
    with pytest.raises(ring.NotInitializedError):
        ring.stats()
    with pytest.raises(ring.NotInitializedError):
        ring.monitoring.recent_collectives()


MOVED = 4 << 18


def moves_bytes() -> Stats:
    deadline = time.monotonic() + 20
    seen = ring.stats()
    # A byte counts when the kernel has the receiver's word for it, and time when its
    # clock, which ticks every few milliseconds, has seen bytes under way.
    while time.monotonic() < deadline:
        ring.allreduce(tf.ones(MOVED // 4), name="links")
        seen = ring.stats()
        has_moved = all(one.bytes >= MOVED and one.busy_s for one in seen.links)
        if int(ring.allreduce(int(has_moved), ring.Min, name="links/moved")):
            break
    return seen


def test_links_say_who_sends_and_who_receives(rank_pool: RankPools) -> None:
    over_tcp = rank_pool(2, env={"RING_KERAS_TRANSPORT": "tcp"}).run(moves_bytes)
    for rank, seen in enumerate(over_tcp):
        [link] = seen.links
        assert (link.sender, link.receiver) == (rank, 1 - rank)
        assert link.bytes >= MOVED
        assert link.bandwidth > 0
    assert [seen.links for seen in rank_pool(2).run(moves_bytes)] == [(), ()]


def none_in_place_of_weights() -> int:
    x, y = np.ones((16, 3), np.float32), np.ones((16, 1), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    model.fit(
        data.map(lambda x, y: (x, y, None)),
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        verbose=0,
    )
    return len(ring.stats().steps)


def test_a_dataset_may_have_none(rank_pool: RankPools) -> None:
    for steps in rank_pool(2).run(none_in_place_of_weights):
        assert steps >= 4
