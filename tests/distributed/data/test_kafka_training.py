"""A model is trained on each message once, whatever is killed, or refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras.data.kafka_pass import read_pass

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

import confluent_kafka as kafka
from support.kafka_broker import Broker

RANKS, BATCH, EPOCHS = 2, 4, 2
COUNT = 60


@pytest.fixture(scope="module")
def broker():
    return Broker()


def build(optimizer):
    """A model in which each message has weights of its own."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((COUNT,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    return model


def examples(batch):
    numbers = tf.strings.to_number(batch["value"], tf.int32)
    return tf.one_hot(numbers, COUNT), tf.cast(numbers % 7, tf.float32)[:, None] / 7


def callbacks_of(resume, *others):
    return [*others, resume, ring.callbacks.BroadcastGlobalVariables()]


def training_worker(directory, config, backup, death=None):
    """Trains, or dies after so many steps; gives the weights."""
    import keras

    ring.init()
    model = build(ring.DistributedOptimizer)

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps = int(self.model.optimizer.iterations)
            if death and steps == death[0] and ring.rank() == 1:
                os.kill(os.getpid(), death[1])

    resume = ring.data.Resume()
    batches = ring.data.shard_kafka(
        "trained",
        f"{directory}/offsets.json",
        batch_size=BATCH,
        config=config,
        resume=resume,
    )
    path = f"{directory}/backup"
    saves = {
        "BackupAndRestore": lambda: ring.callbacks.RootOnly(
            keras.callbacks.BackupAndRestore(path, 2)
        ),
        "Preemption": lambda: ring.callbacks.Preemption(path),
    }[backup]()
    model.fit(
        batches.map(examples, num_parallel_calls=2).prefetch(3),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[*callbacks_of(resume, saves), Dies()],
    )
    return model.get_weights()


def alone_worker(directory, values):
    """The same in one process, which has the batches of all ranks at once."""
    kept = read_pass(f"{directory}/offsets.json")
    model = build(lambda optimizer: optimizer)
    for _ in range(EPOCHS):
        for step in range(kept.steps):
            batch = [
                values[piece.partition][offset]
                for rank in range(kept.ranks)
                for piece in kept.offsets_of(rank, step, step + 1)
                for offset in range(piece.first, piece.end)
                if offset in values[piece.partition]
            ]
            model.train_on_batch(*examples({"value": tf.constant(batch)}))
    return model.get_weights(), kept


def values_of(broker, topic, partitions=4):
    """By partition and offset, as Kafka's own client reads them."""
    consumer = kafka.Consumer(
        {**broker.config, "group.id": "test", "enable.partition.eof": True}
    )
    found = {}
    for partition in range(partitions):
        consumer.assign([kafka.TopicPartition(topic, partition, 0)])
        found[partition] = {}
        while (message := consumer.poll(30)).error() is None:
            found[partition][message.offset()] = message.value()
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("backup", "deaths"),
    [
        ("BackupAndRestore", [(5, signal.SIGKILL), (13, signal.SIGKILL)]),
        pytest.param("Preemption", [(5, signal.SIGTERM)], marks=pytest.mark.slow),
    ],
)
def test_a_resumed_job_ends_like_one_process_that_never_died(
    rank_pool, tmp_path, backup, deaths
):
    broker = Broker()
    broker.write("trained", [10, 30, 0, 12])
    # Batches with fewer messages than others, of which each counts alike.
    broker.write_in_transactions("trained", 0, [str(n) for n in range(52, COUNT)])
    values = values_of(broker, "trained")
    assert sum(map(len, values.values())) == COUNT
    arguments = (str(tmp_path), broker.config, backup)

    for death in deaths:
        ended = run_ranks(training_worker, RANKS, args=(*arguments, death), check=False)
        assert not any(outcome.ok for outcome in ended)
        broker.write("trained", [3, 3, 3, 3])
    resumed = run_ranks(training_worker, RANKS, args=arguments)
    ((alone, kept),) = rank_pool(1).run(alone_worker, args=(str(tmp_path), values))

    assert deaths[0][0] < kept.steps
    assert training.as_bytes(resumed[0]) == training.as_bytes(resumed[1])
    assert training.largest_difference(resumed[0], alone) < 1e-6
    assert (kept.first_step, kept.epochs) == (0, EPOCHS)


class InterruptError(Exception):
    """As a crash would end a `fit`, after so many steps."""


class Interrupts:
    """A callback that raises it; none without a number of steps."""

    def __new__(cls, steps):
        import keras

        class After(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if int(self.model.optimizer.iterations) == steps:
                    raise InterruptError

        return After()


class Job:
    """What ranks do in one test with the files of a directory."""

    def __init__(self, topic, directory, config):
        self.topic, self.directory, self.config = topic, directory, config

    def batches(self, name, resume, **kwargs):
        if "after" in kwargs:
            kwargs["after"] = f"{self.directory}/{kwargs['after']}"
        return ring.data.shard_kafka(
            self.topic,
            f"{self.directory}/{name}",
            batch_size=BATCH,
            config=self.config,
            resume=resume,
            **kwargs,
        )

    def train(self, model, name, *others, epochs=1, change=None, **kwargs):
        """Returns the number of steps that the model has taken."""
        resume = ring.data.Resume()
        data = self.batches(name, resume, **kwargs).map(examples)
        if change is not None:
            data = change(data)
        callbacks = callbacks_of(resume, *others)
        model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        return int(model.optimizer.iterations)

    def refused(self, model, name, *others, error=ValueError, **kwargs):
        """Returns what is said, when nothing was trained on."""
        before = training.as_bytes(model.get_weights())
        with pytest.raises(error) as caught:
            self.train(model, name, *others, **kwargs)
        assert training.as_bytes(model.get_weights()) == before
        return str(caught.value)


def rows_trained(model, before):
    """The messages that a model has been trained on since."""
    changed = (model.get_weights()[0] != before[0]).any(axis=1)
    return changed.nonzero()[0].tolist()


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
    refuses(bound, [], (ring.RingKerasError, tf.errors.OpError))
    model.optimizer.iterations.assign(0)  # Keras has counted that one.
    # No `resume`.
    plain = job.batches("a", None).map(examples)
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


def test_fits_without_their_resume_are_refused(rank_pool, broker, tmp_path):
    arguments = ("misplaced", str(tmp_path), broker.config)

    said, others = rank_pool(2).run(misplaced_worker, args=arguments)

    expected = [
        *["List it in fit()'s callbacks"] * 3,
        *["give shard_kafka() a `resume`"] * 2,
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


def documented_worker(path, brokers, code):
    before = signal.getsignal(signal.SIGTERM)
    model = training.distributed_model(3)
    names = {"ring": ring, "tf": tf, "path": path, "brokers": brokers, "model": model}
    exec(code, names)
    signal.signal(signal.SIGTERM, before)
    return training.as_bytes(model.get_weights()), int(model.optimizer.iterations)


def test_what_the_docs_show_runs(rank_pool, broker, tmp_path):
    text = (Path(__file__).parents[3] / "docs/data.md").read_text()
    code = text.split("## Kafka\n\n```python\n")[1].split("```")[0]
    x, y = training.arrays()
    lines = [
        ",".join(map(str, row)) for row in zip(*x[:100].T, y[:100, 0], strict=True)
    ]
    broker.write_values("clicks", 2, lines)
    arguments = (str(tmp_path), broker.config["bootstrap.servers"], code)

    results = rank_pool(2).run(documented_worker, args=arguments)

    assert results[0] == results[1]
    assert results[0][1] == 2
