"""Messages are bound to the model that is trained on them, and to its steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf
from support import training
from support.kafka_training import (
    BATCH,
    InterruptError,
    Interrupts,
    Job,
    build,
    callbacks_of,
    examples,
    rows_trained,
)

import ring_keras as ring
from ring_keras.data.kafka_pass import read_pass

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from support.kafka_broker import Broker


@pytest.fixture(scope="module")
def broker():
    return Broker()


def chained_worker(*job):
    job = Job(*job)
    if ring.rank() == 0:
        Broker.send(job.config, job.topic, range(20))
    model = build(ring.DistributedOptimizer)
    start = model.get_weights()
    said = {"early": "", "unfinished": "", "foreign": "", "again": ""}
    job.batches("a", None)
    ring.barrier()
    if ring.rank() == 0:
        Broker.send(job.config, job.topic, range(20, 33))
    ring.barrier()
    said["early"] = job.refused(model, "b", after="a")
    with pytest.raises(InterruptError):
        job.train(model, "a", Interrupts(2))
    said["unfinished"] = job.refused(model, "b", after="a")
    assert job.train(model, "a") == 3
    assert rows_trained(model, start) == list(range(20))
    assert job.train(model, "a") == 3  # There is nothing left to do.
    said["foreign"] = job.refused(build(ring.DistributedOptimizer), "b", after="a")
    # Another one may be trained on the first messages.
    assert job.train(build(ring.DistributedOptimizer), "a") == 3
    middle = model.get_weights()
    with pytest.raises(InterruptError):
        job.train(model, "b", Interrupts(4), after="a")
    assert job.train(model, "b", after="a") == 5
    assert rows_trained(model, middle)[-13:] == list(range(20, 33))
    said["again"] = job.refused(model, "a")
    # Whose number of steps might be that of a second epoch.
    said["branch"] = job.refused(model, "c", after="a")
    return said


@pytest.mark.slow
def test_a_later_pass_begins_where_the_model_was(rank_pool, broker, tmp_path):
    arguments = ("chained", str(tmp_path), broker.config)

    first, second = rank_pool(2).run(chained_worker, args=arguments)

    assert first == second
    assert "nothing has been trained on" in first["early"]
    assert "has taken 3 steps. This one has taken 2:" in first["unfinished"]
    assert "This one has taken 0:" in first["foreign"]
    assert "has taken 5 steps, and steps 0 to 3 are those of 1 epochs" in first["again"]
    assert "has taken 3 steps. This one has taken 5:" in first["branch"]
    kept = {name: read_pass(tmp_path / name) for name in "abc"}
    assert [kept[name].first_step for name in "abc"] == [0, 3, None]
    assert [kept[name].after for name in "abc"] == [None, "a", "a"]


def changed_data_worker(*job):
    job = Job(*job)
    if ring.rank() == 0:
        Broker.send(job.config, job.topic, range(20))
    ring.barrier()
    model = build(ring.DistributedOptimizer)
    options = tf.data.Options()
    options.deterministic = False
    changes = [
        lambda data: data.shuffle(3, seed=1),
        lambda data: data.take(2),
        lambda data: data.unbatch().batch(BATCH),
        lambda data: data.map(lambda *pair: pair, 2, deterministic=False),
        lambda data: data.with_options(options),
        lambda data: data.repeat(2),
        lambda _: job.batches("a", None).map(examples),
    ]
    said = [job.refused(model, "a", change=change) for change in changes]
    assert len({text.partition(" Received")[0] for text in said}) == 1
    return said[0]


def test_other_batches_are_refused(rank_pool, broker, tmp_path):
    arguments = ("changed", str(tmp_path), broker.config)

    first, second = rank_pool(2).run(changed_data_worker, args=arguments)

    assert "each batch at its place" in first
    assert "map(), prefetch() and with_options()" in second
    assert read_pass(tmp_path / "a").first_step is None


def misplaced_worker(*job):
    import keras

    job = Job(*job)
    if ring.rank() == 0:
        Broker.send(job.config, job.topic, range(20))
    ring.barrier()
    model = build(ring.DistributedOptimizer)
    start = training.as_bytes(model.get_weights())
    said = []

    def refuses(data, callbacks, error, **kwargs):
        start = training.as_bytes(model.get_weights())
        with pytest.raises(error) as caught:
            model.fit(data, verbose=0, callbacks=callbacks, **kwargs)
        assert training.as_bytes(model.get_weights()) == start
        said.append(str(caught.value))

    # No Resume in the callbacks, or no callbacks at all.
    resume = ring.data.Resume()
    bound = job.batches("a", resume).map(examples)
    common = ring.callbacks.BroadcastGlobalVariables()
    refuses(bound, [common], ValueError)
    refuses(bound, [ring.data.Resume(), common], ValueError)
    refuses(bound, [], ValueError)
    # No `resume`.
    plain = job.batches("a", None).map(examples)
    refuses(plain, [], ValueError)
    refuses(plain, [common], ValueError)
    refuses(plain, [ring.data.Resume(), common], ValueError)
    refuses(plain, [resume, common], ValueError)
    # One for two files.
    with pytest.raises(ValueError, match="is for the messages of one"):
        job.batches("b", resume)
    refuses(bound, [resume, common], ValueError, initial_epoch=1)

    class Restores(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.iterations.assign(1)

    refuses(bound, [resume, Restores(), common], ValueError)
    model.optimizer.iterations.assign(0)
    # Which evaluation does not.
    model.evaluate(plain, verbose=0, callbacks=[ring.callbacks.MetricAverage()])
    model.fit(bound, validation_data=plain, verbose=0, callbacks=callbacks_of(resume))
    assert training.as_bytes(model.get_weights()) != start
    # It is over.
    with pytest.raises(tf.errors.OpError, match="is not in a fit"):
        next(iter(bound))
    # So it is when it has failed.
    interrupted = callbacks_of(resume, Interrupts(4))
    with pytest.raises(InterruptError) as held:
        model.fit(bound, epochs=2, verbose=0, callbacks=interrupted)
    refuses(bound, [common], ValueError, epochs=2)
    del held
    accumulates = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(ring.DistributedOptimizer(accumulates), "mse")
    refuses(bound, [resume, common], ValueError)
    return said


@pytest.mark.slow
def test_fits_without_their_resume_are_refused(rank_pool, broker, tmp_path):
    arguments = ("misplaced", str(tmp_path), broker.config)

    said, others = rank_pool(2).run(misplaced_worker, args=arguments)

    expected = [
        *["List it in fit()'s callbacks"] * 3,
        *["give shard_kafka() a `resume`"] * 3,
        "each batch at its place",
        "leave initial_epoch out",
        "after the one that restores the model",
        "List it in fit()'s callbacks",
        "gradient_accumulation_steps",
    ]
    assert len(said) == len(others) == len(expected)
    for text, theirs, part in zip(said, others, expected, strict=True):
        assert part in text
        assert part in theirs


def failing_worker(*job):
    job = Job(*job)
    model = build(ring.DistributedOptimizer)
    with pytest.raises(ring.RingKerasError, match="no message at offsets"):
        job.train(model, "a")
    said = job.refused(model, "a")
    # As a backup would be.
    model.optimizer.iterations.assign(0)
    with pytest.raises(ring.RingKerasError, match="no message at offsets"):
        job.train(model, "a")
    return said


def test_a_model_whose_step_failed_is_not_gone_on_with(rank_pool, broker, tmp_path):
    broker.write_in_transactions("failing", 0, list("01234567"), at_once=8)
    arguments = ("failing", str(tmp_path), broker.config)

    (said,) = rank_pool(1).run(failing_worker, args=arguments)

    assert "of this model has failed" in said


def unwritable_worker(*job):
    job = Job(*job)
    if ring.rank() == 0:
        Broker.send(job.config, job.topic, range(20))
    ring.barrier()
    model = build(ring.DistributedOptimizer)

    def occupied(data):
        # Where the file is written until it is whole.
        (Path(job.directory) / "unfinished.a").mkdir(exist_ok=True)
        return data

    return job.refused(model, "a", change=occupied, error=ring.RingKerasError)


def test_a_start_that_cannot_be_noted_ends_all_ranks(rank_pool, broker, tmp_path):
    arguments = ("unwritable", str(tmp_path), broker.config)

    first, second = rank_pool(2).run(unwritable_worker, args=arguments)

    assert first == second
    assert "IsADirectoryError" in first
    assert read_pass(tmp_path / "a").first_step is None
