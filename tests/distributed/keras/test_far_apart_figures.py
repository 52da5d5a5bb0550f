"""What callbacks tell of the meetings of ranks that train apart."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.event_files import read
from support.far_apart import (
    INNER,
    Reference,
    batches_of,
    rank_dataset,
    step_of,
)
from support.run_ranks import run_ranks

import ring_keras as ring

STEPS, EVERY = 12, 5


def fit_worker(directory, inner, options, **compiled):
    """The logs of each of two epochs; the first rank writes a board."""
    ring.init()
    model = training.build(1)
    optimizer = ring.DiLoCo(INNER[inner](), sync_every=EVERY, **options)
    model.compile(optimizer, "binary_crossentropy", **compiled)
    logs = model.fit(
        rank_dataset(STEPS),
        epochs=2,
        verbose=0,
        shuffle=False,
        callbacks=[
            ring.callbacks.TensorBoard(directory, update_freq=4),
            ring.callbacks.RingMetrics(),
        ],
    ).history
    names = ("bytes", "drift", "update_norm")
    tags = [tag for name in names if (tag := f"ring/meeting_{name}") in logs]
    return [{tag: logs[tag][epoch] for tag in tags} for epoch in range(2)]


def require_figures(results, reference, nbytes, drift_error=1e-4):
    """The ranks tell one thing, and it is what the algorithm has done."""
    assert all(logs == results[0] for logs in results)
    for logs in results[0]:
        reference.epoch(STEPS)
        expected = reference.take_figures()
        for tag, error in (("drift", drift_error), ("update_norm", 1e-4)):
            tag = f"ring/meeting_{tag}"
            assert logs[tag] == pytest.approx(expected[tag], rel=error)
        assert logs["ring/meeting_bytes"] == pytest.approx(nbytes)


def require_updates_left(directory, expected):
    """Where the board was written: twice at the end of an epoch's steps."""
    scalars, _ = read(directory / "train")
    left = scalars["ring/updates_to_meeting"]
    steps = [4, 8, 12, 12, 16, 20, 24, 24, 24]
    assert left == list(zip(steps, [*expected, *expected, expected[-1]], strict=True))


# The model has 65 weights: 48 in the first fragment of two, or of three.
@pytest.mark.parametrize(
    ("size", "inner", "options", "nbytes", "left", "compiled"),
    [
        (2, "sgd", {}, 65 * 4, [1, 2, 0, 5], {}),
        pytest.param(
            *(2, "sgd", {"fragments": 2, "overlap_steps": 1}),
            # In an epoch of 12 steps each meets at 3 and 8, or 5 and 10, and at 12.
            *(65 * 4 / 2, [1, 2, 0, 3], {}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(2, "accumulation", {"fragments": 2}),
            # At 6 and 10 of the 12 steps, and both at 12.
            *(65 * 4 / 2, [1, 1, 0, 3], {}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(3, "adam", {}, 65 * 4 * 4 / 3, [1, 2, 0, 5], {"jit_compile": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(3, "sgd", {"wire": "int8"}, 2 * 2 * 260, [1, 2, 0, 5], {}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(2, "sgd", {"fragments": 3}, 65 * 4 / 3, [1, 1, 0, 2]),
            {"run_eagerly": True},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_figures_are_those_of_the_algorithm(
    tmp_path, rank_pool, size, inner, options, nbytes, left, compiled
):
    worker = functools.partial(fit_worker, **compiled)
    results = rank_pool(size).run(worker, args=(tmp_path, inner, options))

    wire = options.get("wire", "float32")
    batches = EVERY * (2 if inner == "accumulation" else 1)
    reference = Reference(
        *(size, inner, "diloco", batches, wire),
        fragments=options.get("fragments", 1),
        overlap=options.get("overlap_steps", 0),
    )
    # What int8 rounds off is in the average.
    error = 1e-4 if wire == "float32" else 0.02
    require_figures(results, reference, nbytes, error)
    require_updates_left(tmp_path, left)


@pytest.mark.slow
def test_hosts_that_train_apart_drift_from_each_other(tmp_path):
    """Two ranks of a host are equal, and count as what they have trained together."""
    results = run_ranks(
        fit_worker,
        3,
        args=(str(tmp_path), "sgd", {"apart": "hosts"}),
        env=[{"RING_KERAS_HOST_NAME": host} for host in ("a", "a", "b")],
    )

    reference = Reference(3, "sgd", "diloco", EVERY, hosts=(0, 0, 1))
    # Between two hosts, each with the whole model.
    require_figures(results, reference, 65 * 4)


def board_worker(directory, options):
    """A board of its own, written once an epoch."""
    model = training.build(1)
    optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=20, **options)
    model.compile(optimizer, "binary_crossentropy")
    board = keras.callbacks.TensorBoard(directory)
    model.fit(rank_dataset(STEPS), epochs=2, verbose=0, callbacks=[board])


@pytest.mark.slow
def test_keras_own_board_has_them_too(tmp_path, rank_pool):
    """Of a window that no epoch comes to the end of."""
    rank_pool(2).run(board_worker, args=(str(tmp_path), {}))

    scalars, _ = read(tmp_path / "train")
    for tag in ("meeting_bytes", "meeting_drift", "meeting_update_norm"):
        assert [step for step, _ in scalars[f"ring/{tag}"]] == [12, 24]
    assert [left for _, left in scalars["ring/updates_to_meeting"]] == [12] * 3


def watched_worker():
    """How much is logged after a `fit` that nobody looks at, one, and a loop."""
    model = training.build(1)
    optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=EVERY, wire="top-k")
    model.compile(optimizer, "binary_crossentropy")
    counts, logs = [], {}
    for callbacks in ([], [ring.callbacks.RingMetrics()]):
        logs = model.fit(rank_dataset(STEPS), verbose=0, callbacks=callbacks).history
        counts.append(optimizer.log.count)
    step = tf.function(step_of(model))
    for x, y in batches_of(ring.rank(), ring.size(), EVERY + 1)[:-1]:
        step(tf.constant(x), tf.constant(y))
    assert not optimizer.is_apart
    counts.append(optimizer.log.count)
    return counts, sorted(tag for tag in logs if "meeting" in tag)


@pytest.mark.slow
def test_meetings_are_logged_while_somebody_looks(rank_pool):
    """Of top-k nobody knows the average, so there is no drift."""
    [(counts, tags), second] = rank_pool(2).run(watched_worker)

    assert (counts, tags) == second
    assert counts == [0, 3, 3]
    assert tags == ["ring/meeting_bytes", "ring/meeting_update_norm"]


def sent_worker(wire):
    """Bytes that TCP has carried for each of some meetings, and those that we say."""
    ring.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), *map(keras.layers.Dense, (512, 1600))])
    optimizer = ring.DiLoCo("sgd", sync_every=100, wire=wire)
    model.compile(optimizer, "mse")
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1600)))
    optimizer.meet()  # It makes connections.

    # The last bytes may be acknowledged 40 ms later: in several meetings they are few.
    def sent():
        ring.barrier()
        return sum(link.bytes for link in ring.stats().links)

    before, meetings = sent(), 5
    for _ in range(meetings):
        model.train_on_batch(np.ones((4, 2)), np.ones((4, 1600)))
        optimizer.meet()
    return (sent() - before) / meetings, optimizer.meeting_nbytes(0)


@pytest.mark.parametrize(
    ("size", "wire", "per_weight"),
    [
        (2, "bfloat16", 2),
        (2, "float32", 4),
        (3, "float32", 4 * 4 / 3),
        (2, "int8", 260 / 256),
        (3, "int8", 4 / 3 * 260 / 256),
        (3, "top-k", 2 * 8 / 32),
    ],
)
@pytest.mark.slow
def test_bytes_are_those_on_the_wire(size, wire, per_weight):
    weights = 2 * 512 + 512 + 512 * 1600 + 1600
    results = run_ranks(
        sent_worker,
        size,
        args=(wire,),
        env=[{"RING_KERAS_HOST_NAME": f"host{rank}"} for rank in range(size)],
    )

    carried, said = zip(*results, strict=True)
    assert said == pytest.approx([per_weight * weights] * size, rel=1e-3)
    assert sum(carried) / size == pytest.approx(said[0], rel=0.01)
