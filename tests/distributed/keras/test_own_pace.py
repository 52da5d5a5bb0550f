"""Ranks that train apart, of which some take more batches than others."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import event_files, slowed_training, training
from support.far_apart import INNER, Reference, batches_of, endless_dataset

import ring_keras as ring

STEPS = 7  # Of an epoch; a rank has 10 batches, of which the last is smaller.


class Notes(keras.callbacks.Callback):
    """Weights where all have met, after a batch or an epoch."""

    def __init__(self):
        super().__init__()
        self.met = []

    def on_train_batch_end(self, batch, logs=None):
        if not self.model.optimizer.is_apart:
            self.met.append(self.model.get_weights())

    on_epoch_end = on_train_batch_end


def fit_worker(inner, paces, options=(), **compiled):
    """Weights of each moment at which all had met; what was counted."""
    model = training.build(ring.rank())  # All take the first rank's.
    if ring.rank() == 0:
        model = training.build(1)
    optimizer = ring.DiLoCo(
        INNER[inner](), sync_every=3, pace=paces[ring.rank()], **dict(options)
    )
    model.compile(optimizer, "binary_crossentropy", **compiled)
    notes = Notes()
    model.fit(
        endless_dataset(10),
        steps_per_epoch=STEPS,
        epochs=2,
        verbose=0,
        callbacks=[notes],
    )
    assert bool(model.jit_compile) == bool(compiled.get("jit_compile"))
    counts = (int(optimizer.steps_counted), int(optimizer.iterations))
    return notes.met, model.get_weights(), counts


def require_reference(results, inner, paces, options=(), each=1):
    """The ranks are equal where they have met, and as the algorithm says."""
    size = len(paces)
    options = dict(options)
    all_met, weights, counts = zip(*results, strict=True)
    for everyones in zip(*all_met, strict=True):
        assert len({training.as_bytes(one) for one in everyones}) == 1
    per_update = 2 if inner == "accumulation" else 1
    reference = Reference(
        *(size, inner, "diloco", 3 * per_update),
        options.get("wire", "float32"),
        options.get("fragments", 1),
        options.get("overlap_steps", 0),
    )
    streams = [itertools.cycle(batches_of(r, size, 10)) for r in range(size)]
    met = []
    executions = -(-STEPS // each)
    for _ in range(2):
        for _ in range(executions):
            reference.paced(1, paces, streams, each)
            if reference.is_met:
                met.append(list(reference.common))
        reference.meet()
        met.append(list(reference.common))
    assert len(all_met[0]) == len(met)
    for ours, theirs in zip(all_met[0], met, strict=True):
        assert training.largest_difference(ours, theirs) < 1e-6
    assert training.largest_difference(weights[0], reference.common) < 1e-6
    steps = 2 * executions * each
    assert counts == tuple((steps, steps * pace // per_update) for pace in paces)


@pytest.mark.parametrize(
    ("inner", "paces", "options", "compiled"),
    [
        ("sgd", (1, 3), (("fragments", 2),), {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("sgd", (2, 1), (), {}),
                ("adam", (1, 3), (("wire", "int8"), ("fragments", 2)), {}),
                ("adam", (1, 3), (), {}),
                ("adam", (2, 1), (("fragments", 3),), {}),
                ("sgd", (1, 3), (("wire", "top-k"), ("overlap_steps", 1)), {}),
                ("sgd", (1, 3), (("wire", "int8"), ("overlap_steps", 2)), {}),
                ("sgd", (3, 2), (), {"steps_per_execution": 3}),
                ("adam", (1, 2), (("fragments", 2),), {"steps_per_execution": 5}),
                ("accumulation", (1, 2), (), {"steps_per_execution": 4}),
                ("loss_scaled", (2, 1), (), {}),
                ("sgd", (1, 2), (), {"jit_compile": True}),
                ("sgd", (1, 2), (("overlap_steps", 1),), {"jit_compile": True}),
                ("sgd", (2, 1), (), {"run_eagerly": True}),
                ("adam", (1, 2, 3), (("wire", "int8"),), {}),
                ("sgd", (3, 1, 2), (("fragments", 2),), {}),
            ]
        ),
    ],
)
def test_a_fast_rank_adds_batches_to_each_window(
    rank_pool, inner, paces, options, compiled
):
    worker = functools.partial(fit_worker, **compiled)
    results = rank_pool(len(paces)).run(worker, args=(inner, paces, options))

    each = compiled.get("steps_per_execution", 1)
    require_reference(results, inner, paces, options, each)


def measured_worker(each, overlap_steps):
    """The data of one rank take their time; returns the batches of both."""
    slow = ring.rank() == 0
    model = keras.Sequential(
        [keras.Input((slowed_training.WIDTH,)), keras.layers.Dense(1)]
    )
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(1e-6),
        sync_every=4,
        overlap_steps=overlap_steps,
        pace="own",
    )
    model.compile(optimizer, "mse", steps_per_execution=each)
    data = slowed_training.dataset(64, 0.03 if slow else 0.0).repeat()
    model.fit(data, steps_per_epoch=16, epochs=2, verbose=0)
    assert int(optimizer.steps_counted) == 32
    return int(optimizer.iterations), training.as_bytes(model.get_weights())


@pytest.mark.parametrize(
    ("each", "overlap_steps"),
    [
        (1, 0),
        (4, 0),
        (1, 1),
    ],
)
@pytest.mark.slow
def test_the_rank_that_is_slow_takes_fewer_batches(rank_pool, each, overlap_steps):
    (slow, weights), (fast, others) = rank_pool(2).run(
        measured_worker, args=(each, overlap_steps)
    )

    assert 32 <= slow < fast
    # Of 8 windows two are not measured yet, and from then on the number may double.
    assert fast <= 4 * (1 + sum(2**window for window in range(7)))
    assert weights == others


def alone_worker():
    """One rank: a number is acted on, and there is nobody to be measured with."""
    counts = []
    for pace in (2, "own"):
        model = training.build(1)
        optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=3, pace=pace)
        model.compile(optimizer, "binary_crossentropy")
        model.fit(endless_dataset(10), steps_per_epoch=STEPS, verbose=0)
        counts.append((int(optimizer.steps_counted), int(optimizer.iterations)))
    return counts


@pytest.mark.slow
def test_a_rank_alone_has_its_number_too(rank_pool):
    assert rank_pool(1).run(alone_worker) == [[(7, 14), (7, 7)]]


class Fails:
    """A loss that fails on one rank in one of its batches."""

    def __init__(self, rank, step):
        self.step = step if ring.rank() == rank else -1
        self.steps = 0

    def __call__(self, y, outputs):
        with tf.control_dependencies([tf.py_function(self._count, [], [])]):
            return keras.losses.binary_crossentropy(y, tf.identity(outputs))

    def _count(self):
        self.steps += 1
        if self.steps == self.step:
            raise OSError("the disk is full")


def failure_worker(rank, step):
    """A `fit` fails in an extra batch of one rank; then all train again."""
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.1), sync_every=2, pace=(3, 2)[ring.rank()]
    )
    model.compile(optimizer, Fails(rank, step), jit_compile=False)
    with pytest.raises((tf.errors.UnknownError, ring.RingKerasError)) as caught:
        model.fit(endless_dataset(10), steps_per_epoch=6, verbose=0)
    batches = int(optimizer.iterations)
    model.fit(endless_dataset(10), steps_per_epoch=6, verbose=0)
    return str(caught.value), batches, model.get_weights()


@pytest.mark.parametrize(
    ("rank", "step"),
    [
        (0, 8),  # The first window is over, and one extra batch is in the second.
        (1, 3),  # Others come to a meeting.
        (1, 1),  # The very first.
        (1, 5),  # Others come to the question.
        (0, 7),  # The first of a window.
    ],
)
@pytest.mark.slow
def test_a_rank_that_fails_in_an_extra_batch_tells_the_others(rank_pool, rank, step):
    results = rank_pool(2).run(failure_worker, args=(rank, step), timeout_s=90)

    messages, batches, weights = zip(*results, strict=True)
    assert "the disk is full" in messages[rank]
    assert messages[1 - rank].startswith("[RK310] "), messages
    assert f"rank {rank} cannot take part" in messages[1 - rank]
    assert batches[rank] == step - 1
    assert training.as_bytes(weights[0]) == training.as_bytes(weights[1])
    if (rank, step) == (1, 3):
        return  # The first rank has taken a step whose meeting has failed.
    reference = Reference(2, "sgd", "diloco", 2)
    paces = (3, 2)
    streams = [itertools.cycle(batches_of(r, 2, 10)) for r in range(2)]
    # What the first rank has trained is what all begin with.
    counted, extra = divmod(batches[0], paces[0])
    reference.paced(counted, paces, streams)
    for x, y in itertools.islice(streams[0], extra):
        reference.models[0].train_on_batch(x, y)
        reference.amounts[:, 0] += len(x)
    reference.models[1].set_weights(reference.models[0].get_weights())
    reference.amounts[:] = reference.amounts[:, :1]
    streams = [itertools.cycle(batches_of(r, 2, 10)) for r in range(2)]
    reference.paced(6, paces, streams)
    if not reference.is_met:
        reference.meet()
    assert training.largest_difference(weights[0], reference.common) < 1e-6


def around_worker(directory):
    """What counts and reports beside the steps: all that a `fit` has around them."""
    layers = lambda: [  # noqa: E731
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
    model = training.assemble(1, layers, None)
    optimizer = ring.DiLoCo(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 100)),
        sync_every=3,
        pace=1 + 2 * ring.rank(),
    )
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    board = ring.callbacks.TensorBoard(f"{directory}/logs", update_freq=2)
    history = model.fit(
        endless_dataset(10),
        steps_per_epoch=STEPS,
        epochs=2,
        verbose=0,
        validation_data=training.dataset(16).batch(4),
        callbacks=[
            board,
            ring.callbacks.RingMetrics(),
            keras.callbacks.EarlyStopping(patience=5),
            keras.callbacks.ModelCheckpoint(f"{directory}/best.keras"),
        ],
    ).history
    ring.barrier()
    if ring.rank() == 0:
        scalars, _ = event_files.read(Path(directory) / "logs" / "train")
        steps = [step for step, _ in scalars["ring/compute_s"]]
        assert max(steps) == 2 * STEPS, "the axis has the steps that all count"
    loaded = keras.models.load_model(f"{directory}/best.keras")
    assert loaded.optimizer.pace == 1, "of the rank that wrote it"
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    loaded.optimizer.pace = optimizer.pace
    loaded.fit(endless_dataset(10), steps_per_epoch=STEPS, verbose=0)
    assert int(loaded.optimizer.steps_counted) == 3 * STEPS
    # All have gone on with the writer's number.
    assert int(loaded.optimizer.iterations) == (2 + optimizer.pace) * STEPS
    return history["loss"], training.as_bytes(loaded.get_weights())


@pytest.mark.slow
def test_what_is_around_the_steps_goes_by_what_all_count(rank_pool, tmp_path):
    (loss, weights), (others_loss, others) = rank_pool(2).run(
        around_worker, args=(str(tmp_path),)
    )

    assert loss == others_loss
    assert weights == others


def metrics_worker(paces):
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.0), sync_every=3, pace=paces[ring.rank()]
    )
    model.compile(optimizer, "binary_crossentropy")
    fit = model.fit(endless_dataset(10), steps_per_epoch=STEPS, verbose=0)
    return fit.history["loss"]


@pytest.mark.slow
def test_metrics_are_of_all_examples(rank_pool):
    """Weights stay what they are, so a loss says which batches it is of."""
    paces = (1, 2)
    everyones = rank_pool(2).run(metrics_worker, args=(paces,))

    model = training.build(1)
    batches = [
        batch
        for rank, pace in enumerate(paces)
        for batch in itertools.islice(
            itertools.cycle(batches_of(rank, 2, 10)), pace * STEPS
        )
    ]
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    losses = keras.losses.binary_crossentropy(y, model(x))
    for loss in everyones:
        assert loss == pytest.approx([float(tf.reduce_mean(losses))], rel=1e-5)
