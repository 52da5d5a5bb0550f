"""Files, failures and refusals of ranks that train apart."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import shutil
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.far_apart import (
    BATCH,
    INNER,
    Reference,
    batches_of,
    rank_dataset,
    step_of,
)
from support.log_texts import LogTexts
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import verify


def loaded_worker(directory):
    """Goes on from a file that the first rank has saved between two meetings."""
    model = training.build(1)
    make = ring.DiLoCo(INNER["sgd"](), sync_every=4)
    model.compile(make, "binary_crossentropy")
    batches = batches_of(ring.rank(), ring.size(), 20)
    step = tf.function(step_of(model), reduce_retracing=True)
    for x, y in batches[:6]:
        step(x, y)
    if ring.rank() == 0:
        model.save(f"{directory}/apart.keras")
    ring.barrier()
    loaded = keras.models.load_model(f"{directory}/apart.keras")
    assert type(loaded.optimizer) is ring.DiLoCo
    assert loaded.optimizer.sync_every == 4
    assert loaded.optimizer.is_apart
    if ring.rank() == 0:
        for ours, theirs in zip(
            model.optimizer.variables, loaded.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    step = tf.function(step_of(loaded), reduce_retracing=True)
    for x, y in batches[6:12]:
        step(x, y)
    return loaded.get_weights()


@pytest.mark.slow
def test_a_file_saved_between_two_meetings_goes_on_there(rank_pool, tmp_path):
    all_weights = rank_pool(2).run(loaded_worker, args=(str(tmp_path),))

    assert training.as_bytes(all_weights[0]) == training.as_bytes(all_weights[1])
    reference = Reference(2, "sgd", "diloco", 4)
    reference.loop(0, 6)
    reference.models[1].set_weights(reference.models[0].get_weights())
    reference.loop(6, 12)
    assert training.largest_difference(all_weights[0], reference.common) < 1e-6


def loaded_residuals_worker(directory):
    """A file has the residuals; what one rank alone goes on with has all of them."""
    model = training.build(1)
    model.compile(
        ring.DiLoCo(INNER["sgd"](), sync_every=2, wire="top-k"), "binary_crossentropy"
    )
    model.fit(rank_dataset(4), verbose=0)
    model.save(f"{directory}/{ring.rank()}.keras")
    loaded = keras.models.load_model(f"{directory}/{ring.rank()}.keras").optimizer
    own = [np.asarray(one) for one in model.optimizer.residuals]
    assert any(one.any() for one in own)
    for ours, theirs in zip(own, loaded.residuals, strict=True):
        np.testing.assert_array_equal(theirs, ours)
    return own


def alone_worker(directory):
    """A job of one rank: nothing has to travel, so all that was left is applied."""
    model = keras.models.load_model(f"{directory}/0.keras")
    before = model.get_weights()
    left = [np.asarray(one) for one in model.optimizer.residuals]
    velocities = [np.asarray(v) for v in model.optimizer.outer_optimizer.variables[2:]]
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
    for _ in range(2):
        model.optimizer.apply(zeros, model.trainable_variables)
    assert not any(np.asarray(one).any() for one in model.optimizer.residuals)
    for weight, was, change, velocity in zip(
        model.get_weights(), before, left, velocities, strict=True
    ):
        velocity = 0.9 * velocity - 0.7 * change
        np.testing.assert_allclose(
            weight, was + 0.9 * velocity - 0.7 * change, atol=1e-6
        )


@pytest.mark.slow
def test_residuals_are_saved_and_lost_on_no_number_of_ranks(rank_pool, tmp_path):
    first, second = rank_pool(2).run(loaded_residuals_worker, args=(str(tmp_path),))
    assert training.largest_difference(first, second) > 0

    rank_pool(1).run(alone_worker, args=(str(tmp_path),))


def copies_worker():
    """Every kind of copy is the same optimizer, and trains."""
    optimizer = ring.DiLoCo(
        keras.optimizers.Adam(0.02),
        keras.optimizers.SGD(0.5, momentum=0.8),
        sync_every=5,
        wire="int8",
        fragments=2,
        name="mine",
    )
    config = optimizer.get_config()
    model = training.build(1)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(6), verbose=0)
    copies = [
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        ring.DiLoCo.from_config(optimizer.get_config()),
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
        pickle.loads(pickle.dumps(model)).optimizer,
    ]
    for one in copies:
        assert type(one) is ring.DiLoCo
        assert one.get_config() == config
    assert optimizer.get_config() == config
    assert float(optimizer.learning_rate) == pytest.approx(0.02)
    optimizer.learning_rate = 0.01
    assert float(optimizer.inner_optimizer.learning_rate) == pytest.approx(0.01)
    assert int(optimizer.iterations) == 6
    clone = keras.models.clone_model(model)
    clone.compile(copies[2], "binary_crossentropy")
    clone.fit(rank_dataset(6), verbose=0)
    return training.as_bytes(clone.get_weights())


@pytest.mark.slow
def test_copies_are_the_same_optimizer(rank_pool):
    first, second = rank_pool(2).run(copies_worker)

    assert first == second


class Preempted(keras.callbacks.Callback):
    """A signal to one rank, after a step of the first epoch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == ring.size() - 1 and batch + 1 == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def resumable_fit(directory, inner, options, spe=1, *callbacks):
    """Two epochs of 8 steps of 2 ranks; goes on if there is a backup."""
    model = training.build(1)
    model.compile(
        ring.DiLoCo(INNER[inner](), **options),
        "binary_crossentropy",
        steps_per_execution=spe,
    )
    resume = ring.data.Resume()
    data = ring.data.shard(training.dataset(64), seed=1, resume=resume).batch(BATCH)
    backup = ring.callbacks.Preemption(directory)
    warmed_up = []
    if inner == "momentum":  # It is scaled with the rate.
        warmed_up = [ring.callbacks.LearningRateWarmup(0.1, warmup_steps=12)]
    callbacks = [*warmed_up, backup, resume, *callbacks]
    try:
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    except SystemExit as error:
        assert error.code == 128 + signal.SIGTERM
    ring.barrier()
    return training.as_bytes(model.get_weights())


def preempted_worker(directory, inner, options, steps, spe):
    """The weights of a fit, of one that a signal ends, and of who goes on."""
    case = inner, options, spe
    whole = resumable_fit(f"{directory}/whole", *case)
    cut = resumable_fit(f"{directory}/cut", *case, Preempted(steps))
    return whole, cut, resumable_fit(f"{directory}/cut", *case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "options", "steps", "spe"),
    [
        ("adam", {"fragments": 3}, 5, 1),
        ("sgd", {}, 5, 1),
        ("momentum", {}, 5, 1),
        ("adam", {"wire": "int8"}, 6, 3),
        ("accumulation", {"sync_every": 2}, 3, 1),
        # That is where they meet, and there an epoch ends.
        ("adam", {}, 4, 1),
        ("adam", {"sync_every": 5}, 8, 1),
        # A meeting is under way.
        ("sgd", {"overlap_steps": 2}, 5, 1),
        ("sgd", {"overlap_steps": 2, "wire": "int8"}, 5, 1),
    ],
)
def test_a_signal_between_two_meetings_changes_no_bit(
    rank_pool, tmp_path, inner, options, steps, spe
):
    options = {"sync_every": 4, **options}
    arguments = (str(tmp_path), inner, options, steps, spe)
    first, second = rank_pool(2).run(preempted_worker, args=arguments, timeout_s=120)

    assert first[0] == second[0]
    assert first[2] == second[2]
    assert (first[0] == first[2]) == ("overlap_steps" not in options)
    # The signal adds no meeting.
    have_met = "fragments" not in options and steps in (4, 8)
    assert (first[1] == second[1]) == have_met
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def other_ranks_worker(directory, options):
    """Goes on with another number of ranks, of which some have no backup."""
    model = training.build(1)
    model.compile(ring.DiLoCo(keras.optimizers.SGD(0.1), **options), "mse")
    backup = ring.callbacks.Preemption(directory)
    seen = []
    notes = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            [float(one) for one in model.optimizer._amounts_apart]
        )
    )
    size = ring.size()
    model.fit(rank_dataset(4), verbose=0, callbacks=[backup, notes], shuffle=False)
    assert size == 3
    return seen[0], training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_a_rank_without_a_backup_begins_where_the_ranks_have_met(rank_pool, tmp_path):
    options = {"sync_every": 4, "fragments": 2}
    arguments = (str(tmp_path), "sgd", options, 1, Preempted(4))
    rank_pool(2).run(resumable_fit, args=arguments, timeout_s=120)

    results = rank_pool(3).run(other_ranks_worker, args=(str(tmp_path), options))

    amounts, weights = zip(*results, strict=True)
    # Of the fragment that has met two steps ago, and of that of now.
    assert amounts == ([12.0, 4.0], [12.0, 4.0], [4.0, 4.0])
    assert len(set(weights)) == 1


@pytest.mark.slow
def test_a_backup_of_another_training_is_left_alone(rank_pool, tmp_path):
    """Of ranks that were there once; one lay where the end of `fit` did not see it."""
    backup, elsewhere = tmp_path / "backup", tmp_path / "elsewhere"
    options = {"sync_every": 4, "fragments": 2}
    arguments = (str(backup), "sgd", options, 1)
    rank_pool(3).run(resumable_fit, args=(*arguments, Preempted(4)), timeout_s=120)
    assert {"rank-1", "rank-2"} <= {path.name for path in backup.iterdir()}
    shutil.copytree(backup / "rank-2", elsewhere)

    rank_pool(2).run(resumable_fit, args=arguments, timeout_s=120)
    left = list(backup.iterdir())
    shutil.copytree(elsewhere, backup / "rank-2", dirs_exist_ok=True)
    rank_pool(2).run(resumable_fit, args=(*arguments, Preempted(4)), timeout_s=120)
    results = rank_pool(3).run(other_ranks_worker, args=(str(backup), options))

    amounts, weights = zip(*results, strict=True)
    # As in the test before: the third rank begins where the others have met.
    assert amounts == ([12.0, 4.0], [12.0, 4.0], [4.0, 4.0])
    assert len(set(weights)) == 1
    assert not left
    assert not list(backup.iterdir())


def host_without_a_backup_worker(directory):
    """The weights after each step of a host of which one rank finds none."""
    ring.init()
    options = {"sync_every": 4, "apart": "hosts"}
    resumable_fit(directory, "adam", options, 1, Preempted(2))
    if ring.rank() == 1:
        shutil.rmtree(f"{directory}/rank-1")
    ring.barrier()
    seen = []
    notes = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            training.as_bytes(notes.model.get_weights())
        )
    )
    resumable_fit(directory, "adam", options, 1, notes)
    return seen


@pytest.mark.slow
def test_ranks_of_a_host_stay_equal_without_a_backup(tmp_path):
    hosts = [{"RING_KERAS_HOST_NAME": "a"}] * 2

    first, second = run_ranks(
        host_without_a_backup_worker, 2, args=(str(tmp_path),), env=hosts
    )

    assert len(first) > 8
    assert first == second


class LeavesEarly(keras.callbacks.Callback):
    """Stops, or fails, on rank 1 within a window."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 4:
            if self._fails:
                raise OSError("the disk is full")
            self.model.stop_training = True


def unknown_length_worker():
    model = training.build(1)
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(ring.DistributedOptimizer(inner, sync_every=1), "binary_crossentropy")
    batches = rank_dataset(4)
    model.fit(batches.filter(lambda x, y: True), epochs=3, verbose=0)
    return [int(model.optimizer.iterations), int(model.optimizer._iterations)]


@pytest.mark.slow
def test_the_end_of_data_of_unknown_length_is_no_step(rank_pool):
    assert rank_pool(2).run(unknown_length_worker) == [[6, 12]] * 2


def leaving_worker(fails):
    """A rank that ends `fit` between two meetings: all do, and have met."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=4)
    model.compile(optimizer, "binary_crossentropy")
    try:
        model.fit(rank_dataset(8), verbose=0, callbacks=[LeavesEarly(fails)])
    except (OSError, ring.RingKerasError) as error:
        return str(error)
    assert int(optimizer.iterations) == 5
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_a_rank_that_stops_between_two_meetings_stops_all(rank_pool):
    first, second = rank_pool(2).run(leaving_worker, args=(False,))

    assert first == second


def test_a_rank_that_fails_between_two_meetings_tells_the_others(rank_pool):
    first, second = rank_pool(2).run(leaving_worker, args=(True,))

    assert "[RK310]" in first
    assert "the disk is full" in first
    assert second == "the disk is full"


def fails_under_way_worker(wire, jit_compile):
    """A rank that fails when a meeting has begun; then all train again."""
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=2, wire=wire
    )
    model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
    with pytest.raises((OSError, ring.RingKerasError)):
        model.fit(rank_dataset(8), verbose=0, callbacks=[LeavesEarly(True)])
    model.fit(rank_dataset(8), verbose=0, shuffle=False)
    assert pickle.loads(pickle.dumps(model)).optimizer.overlap_steps == 2
    return model.get_weights()


@pytest.mark.parametrize(
    ("wire", "jit_compile"),
    [
        ("float32", False),
        ("top-k", False),
        ("int8", True),
    ],
)
@pytest.mark.slow
def test_a_meeting_of_a_fit_that_failed_is_forgotten(rank_pool, wire, jit_compile):
    arguments = (wire, jit_compile)
    require_forgotten(rank_pool(2).run(fails_under_way_worker, args=arguments), wire, 5)


def require_forgotten(found, wire, steps):
    """After so many steps of the first rank a `fit` has failed, then all went on."""
    first, second = found
    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, wire, overlap=2)
    reference.loop(0, steps)
    reference.forget()
    # All begin with the first rank's.
    reference.models[1].set_weights(reference.models[0].get_weights())
    reference.epoch(8)
    assert training.largest_difference(first, reference.common) < 1e-6


def failing_model(rank, step, **options):
    """A model whose loss fails on that rank in one step, and its steps so far."""
    model = training.build(1)
    steps = []

    def count():
        steps.append(None)
        if ring.rank() == rank and len(steps) == step:
            raise OSError("the disk is full")

    def loss(y, outputs):
        with tf.control_dependencies([tf.py_function(count, [], [])]):
            return keras.losses.binary_crossentropy(y, tf.identity(outputs))

    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, **options)
    model.compile(optimizer, loss, jit_compile=False)
    return model, steps


def fit_that_fails(model):
    with pytest.raises((tf.errors.UnknownError, ring.RingKerasError)) as error:
        model.fit(rank_dataset(8), verbose=0)
    assert "the disk is full" in str(error.value)


def fails_in_a_step_worker(rank, step, times=1, anew=False, **options):
    """A `fit` fails so many times; then all train on, or train another model."""
    ring.init()
    model, steps = failing_model(rank, step, **options)
    for _ in range(times):
        steps.clear()
        fit_that_fails(model)
    if anew:
        model, steps = failing_model(rank, step, **options)
    steps += [None] * 9
    model.fit(rank_dataset(8), verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_a_rank_that_fails_as_a_meeting_departs_is_heard_of(rank_pool, wire):
    options = {"wire": wire, "overlap_steps": 2}
    found = rank_pool(2).run(fails_in_a_step_worker, args=(1, 4), kwargs=options)
    require_forgotten(found, wire, 4)


@pytest.mark.parametrize(
    ("rank", "step", "wire"),
    [
        pytest.param(1, 2, "float32", marks=pytest.mark.slow),
        pytest.param(0, 4, "float32", marks=pytest.mark.slow),
        pytest.param(1, 4, "int8", marks=pytest.mark.slow),
        pytest.param(2, 4, "int8", marks=pytest.mark.slow),
    ],
)
def test_the_ranks_of_a_host_hear_of_one_that_fails(rank, step, wire):
    """They wait for each other where the ranks of other hosts do not."""
    worker = functools.partial(fails_in_a_step_worker, apart="hosts", wire=wire)
    require_equal_weights(run_ranks(worker, 3, args=(rank, step, 2), env=HOSTS))


@pytest.mark.slow
def test_what_a_host_has_heard_of_a_model_is_not_of_the_next():
    worker = functools.partial(fails_in_a_step_worker, apart="hosts", anew=True)
    require_equal_weights(run_ranks(worker, 3, args=(1, 2), env=HOSTS))


class Table(keras.layers.Layer):
    """Its gradient is sparse on rank 0, and dense on the others."""

    def build(self, shape):
        self.table = self.add_weight(shape=(4, 1), name="table")

    def call(self, rows):
        rows = tf.cast(rows[:, 0], tf.int32)
        if ring.rank() == 0:
            return tf.gather(self.table, rows)
        return tf.one_hot(rows, 4) @ tf.convert_to_tensor(self.table)


def differs_in_a_host_worker():
    ring.init()
    model = keras.Sequential([keras.Input((1,)), Table()], name="model")
    model.compile(ring.DiLoCo("sgd", sync_every=4, apart="hosts"), "mse")
    x = np.zeros((24, 1), np.float32)
    data = ring.data.shard((x, x), seed=1)
    messages = []
    for _ in range(2):
        with pytest.raises(ring.RankMismatchError) as error:
            model.fit(*data, batch_size=4, verbose=0)
        messages.append(str(error.value))
    return messages


@pytest.mark.slow
def test_other_hosts_hear_of_an_error_that_the_ranks_of_one_have():
    in_host, _, elsewhere = run_ranks(differs_in_a_host_worker, 3, env=HOSTS)
    for first, other in zip(in_host, elsewhere, strict=True):
        assert first.startswith("[RK311]")
        assert other.startswith("[RK310]")
        assert "[RK311]" in other


HOSTS = [{"RING_KERAS_HOST_NAME": host} for host in ("a", "a", "b")]


def require_equal_weights(of_ranks):
    first, *others = map(training.as_bytes, of_ranks)
    assert all(one == first for one in others)


class TrainsAnother(keras.callbacks.Callback):
    """Has a `fit` within this one fail."""

    def __init__(self, model):
        super().__init__()
        self._other = model

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            fit_that_fails(self._other)


def fails_within_worker(options, then_loops):
    ring.init()
    other, _ = failing_model(1, 4, **options)
    model, _ = failing_model(None, 0, **options)
    if then_loops:
        fit_that_fails(other)
        step = tf.function(step_of(model), reduce_retracing=True)
        for batch in batches_of(ring.rank(), ring.size(), 8):
            step(*batch)
        model.optimizer.meet()
    else:
        callbacks = [TrainsAnother(other)]
        model.fit(rank_dataset(8), verbose=0, shuffle=False, callbacks=callbacks)
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("then_loops", [False, True])
@pytest.mark.parametrize("options", [{"apart": "hosts"}, {"overlap_steps": 2}])
def test_a_fit_that_failed_leaves_nothing_to_what_goes_on(options, then_loops):
    """Not to the `fit` around it, nor to a loop."""
    found = run_ranks(fails_within_worker, 3, args=(options, then_loops), env=HOSTS)
    require_equal_weights(found)


def loaded_under_way_worker(directory):
    """A file is loaded when a meeting has begun, which is not of its weights."""
    model = training.build(1)
    model.compile(
        ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=2),
        "binary_crossentropy",
    )
    model.optimizer.build(model.trainable_variables)
    file = f"{directory}/{ring.rank()}.weights.h5"
    model.save_weights(file)
    step = tf.function(step_of(model), reduce_retracing=True)
    batches = batches_of(ring.rank(), ring.size(), 9)[:8]
    for batch in batches[:5]:
        step(*batch)
    model.load_weights(file)
    for batch in batches:
        step(*batch)
    model.optimizer.meet()
    return model.get_weights()


@pytest.mark.slow
def test_a_file_that_is_loaded_forgets_a_meeting_under_way(rank_pool, tmp_path):
    first, second = rank_pool(2).run(loaded_under_way_worker, args=(str(tmp_path),))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, overlap=2)
    reference.loop(0, 8)
    reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


def refusals_worker():
    """What no rank may begin with: the messages."""
    sgd = keras.optimizers.SGD
    built = sgd(0.1)
    built.build([keras.Variable([1.0])])
    cases = [
        lambda: ring.DiLoCo(sgd(), sync_every=0),
        lambda: ring.DiLoCo(sgd(), sync_every=2, apart="racks"),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=-1),
        lambda: ring.DiLoCo(sgd(), sync_every=2.5),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=2, op=ring.Adasum),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=2, sparse_as_dense=True),
        lambda: ring.DiLoCo(sgd(), built, sync_every=2),
        lambda: ring.DiLoCo(ring.DistributedOptimizer(sgd()), sync_every=2),
        lambda: ring.DiLoCo(ring.DiLoCo(sgd(), sync_every=2), sync_every=2),
        lambda: ring.DiLoCo(sgd(use_ema=True), sync_every=2),
        lambda: ring.DiLoCo(sgd(), sgd(gradient_accumulation_steps=2), sync_every=2),
        lambda: ring.DiLoCo(sgd(), sgd(loss_scale_factor=2.0), sync_every=2),
        lambda: ring.DiLoCo("ftrl", sync_every=2),
        lambda: ring.DiLoCo("sgd", sync_every=2, wire="int4"),
        lambda: ring.DiLoCo("sgd", sync_every=2, fragments=3),
        lambda: ring.DiLoCo("sgd", sync_every=2, overlap_steps=2),
    ]
    messages = []
    for case in cases:
        with pytest.raises(ValueError, match=r"RK34[3567]") as error:
            case()
        messages.append(str(error.value))
    return messages


def test_what_cannot_be_is_refused(rank_pool):
    first, second = rank_pool(2).run(refusals_worker)

    for message, words in zip(
        first,
        [
            "sync_every=0",
            "apart='racks'",
            "sync_every=-1",
            "sync_every=2.5",
            "op=<ReduceOp.ADASUM: 'adasum'>",
            "sparse_as_dense=True",
            "is built already",
            "is a distributed optimizer already",
            "hands its gradients to optimizers of its own",
            "has use_ema",
            "gradient_accumulation_steps=2",
            "loss_scale_factor=2.0",
            "makes weights of its own state",
            "wire='int4'",
            "fragments=3, sync_every=2",
            "overlap_steps=2, sync_every=2",
        ],
        strict=True,
    ):
        assert words in message
    assert first == second


def disagreement_worker(what):
    """Ranks that would not meet; returns the error of each."""
    odd = ring.rank() == 1
    outer = keras.optimizers.SGD(0.5 if what == "outer" and not odd else 0.7)
    sync_every = 2 if what == "sync_every" and not odd else 3
    wire = "int8" if what == "wire" and odd else "float32"
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.1), outer, sync_every=sync_every, wire=wire
    )
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises(ring.RankMismatchError, match="RK342") as in_fit:
        model.fit(rank_dataset(4), verbose=0)
    step = step_of(model)
    ((x, y),) = batches_of(ring.rank(), ring.size(), 1)
    with pytest.raises(ring.RankMismatchError, match="RK342") as in_loop:
        step(tf.constant(x), tf.constant(y))
    return str(in_fit.value), str(in_loop.value)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("sync_every", "sync_every differs across ranks: rank 0 has 2, rank 1 has 3"),
        ("outer", "the optimizer of the meetings differs across ranks: rank 0 has SGD"),
        ("wire", "wire differs across ranks: rank 0 has float32, rank 1 has int8"),
    ],
)
def test_ranks_that_disagree_all_get_an_error(rank_pool, what, words):
    for messages in rank_pool(2).run(disagreement_worker, args=(what,)):
        assert all(words in message for message in messages)


def loss_scale_worker():
    """A LossScaleOptimizer around it, as compile() adds one."""
    model = training.build(1, dtype="mixed_float16")
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "binary_crossentropy")
    with pytest.raises(ring.RingKerasError, match="RK344"):
        model.fit(rank_dataset(4), verbose=0)


def test_loss_scaling_around_it_is_refused(rank_pool):
    rank_pool(2).run(loss_scale_worker)


def unbuilt_worker():
    """Gradients for no variables that it knows of: Keras's own error."""
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    with pytest.raises(ValueError, match="optimizer must already be built"):
        optimizer.apply([tf.constant(1.0)])


def test_gradients_need_variables(rank_pool):
    rank_pool(2).run(unbuilt_worker)


def verify_worker() -> None:
    ring.init()
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises(ring.RingKerasError, match=r"\[RK343\]"):
        verify.compare(lambda: model.fit(rank_dataset(4), verbose=0))


def test_verify_refuses_what_is_not_meant_to_be_equal():
    run_ranks(verify_worker, 2)


class TrainsAtEpochEnd(keras.callbacks.Callback):
    """On this rank's own examples."""

    def on_epoch_end(self, epoch, logs=None):
        x, y = training.arrays()
        begin = 4 * ring.rank()
        self.model.train_on_batch(x[begin : begin + 4], y[begin : begin + 4])


def training_at_the_end_worker(epochs):
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=3)
    model = training.compile_model(training.build(1), optimizer)
    mine = ring.data.shard(training.dataset(32))
    training.fit(model, mine, 4, epochs=epochs, callbacks=[TrainsAtEpochEnd()])
    assert not optimizer.is_apart
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2])
def test_what_callbacks_train_at_the_end_meets_too(rank_pool, epochs):
    first, second = rank_pool(2).run(training_at_the_end_worker, args=(epochs,))

    assert first == second


class NotesApart(keras.callbacks.Callback):
    """After each batch, whether the ranks have just met."""

    def __init__(self):
        super().__init__()
        self.apart = []

    def on_train_batch_end(self, batch, logs=None):
        self.apart.append(self.model.optimizer.is_apart)


def other_window_worker():
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=3)
    model, notes = training.build(1), NotesApart()
    mine = ring.data.shard(training.dataset(32))
    for sync_every in (3, 2):
        optimizer.sync_every = sync_every
        training.compile_model(model, optimizer)
        training.fit(model, mine, 4, callbacks=[notes])
    return notes.apart


@pytest.mark.slow
def test_a_window_may_have_another_length_in_the_next_fit(rank_pool):
    expected = [True, True, False, True, True, False, True, False]

    assert rank_pool(2).run(other_window_worker) == [expected] * 2


def loop_before_fit_worker():
    """Trains apart in a loop, and then by `fit`, with and without a meeting between."""
    told = []
    for meets in (False, True):
        model = training.build(1)
        optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=10)
        model.compile(optimizer, "binary_crossentropy")
        x, y = (array[ring.rank() :: ring.size()] for array in training.arrays())
        for start in range(0, 3 * BATCH, BATCH):
            model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
        if meets:
            optimizer.meet()
        with LogTexts() as lines:
            model.fit(x[:8], y[:8], batch_size=BATCH, verbose=0)
        told.append([line for line in lines if "[RK666]" in line])
    return told


@pytest.mark.slow
def test_what_is_lost_of_a_loop_before_fit_is_told(rank_pool):
    (first, met_first), (second, met_second) = rank_pool(2).run(loop_before_fit_worker)

    assert not first and not met_first and not met_second
    (line,) = second
    assert "What rank 1 has trained since the ranks met last is lost" in line
