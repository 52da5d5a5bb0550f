"""Each message that topics hold goes to one rank, once, whatever is killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

from support.kafka_broker import Broker

COUNTS = [5, 0, 41, 17]
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module")
def broker():
    made = Broker()
    made.write("refused", [2, 0, 0, 0])
    return made


def batches_of(topics, offsets, config, **kwargs):
    part = ring.data.shard_kafka(topics, offsets, config=config, **kwargs)
    count = int(part.cardinality())
    batches = list(part.as_numpy_iterator())
    assert len(batches) == count
    return batches


def numbers_of(batches):
    return [[int(value) for value in batch["value"]] for batch in batches]


def all_worker(topic, path, config, batch_size):
    part = ring.data.shard_kafka(topic, path, config=config, batch_size=batch_size)
    passes = [list(part.as_numpy_iterator()) for _ in range(2)]
    for batch in passes[0]:
        for number, key in zip(batch["value"], batch["key"], strict=True):
            assert key == b"key " + number
        assert set(batch["topic"]) <= {topic.encode()}
        assert (batch["timestamp_ms"] > 0).all()
        starts = {0: 0, 2: 5, 3: 46}
        for number, partition, offset in zip(
            *(batch[name] for name in ("value", "partition", "offset")), strict=True
        ):
            assert int(number) == starts[int(partition)] + offset
    assert numbers_of(passes[0]) == numbers_of(passes[1])
    return int(part.cardinality()), numbers_of(passes[0])


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_each_message_is_on_one_rank(rank_pool, broker, tmp_path, size, batch_size):
    topic = f"all-{size}-{batch_size}"
    broker.write(topic, COUNTS)

    results = rank_pool(size).run(
        all_worker,
        args=(topic, str(tmp_path / "offsets"), broker.config, batch_size),
    )

    assert len({count for count, _ in results}) == 1
    batches = [batch for _, batches in results for batch in batches]
    assert sorted(itertools.chain(*batches)) == list(range(TOTAL))
    sizes = set(map(len, batches))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert [count for count, _ in results] == [len(batches) for _, batches in results]


def later_worker(topic, directory, config, after):
    offsets = f"{directory}/{'later' if after else 'first'}.json"
    kwargs = {"after": f"{directory}/first.json"} if after else {}
    return numbers_of(batches_of([topic], offsets, config, batch_size=8, **kwargs))


def test_messages_that_come_later_are_of_a_later_job(rank_pool, broker, tmp_path):
    directory = str(tmp_path)
    ranks = rank_pool(2)

    def read(after=False):
        results = ranks.run(
            later_worker, args=("later", directory, broker.config, after)
        )
        return sorted(itertools.chain(*itertools.chain(*results)))

    broker.write("later", [20, 1, 0, 3])
    assert read() == list(range(24))
    broker.write("later", [0, 2, 9, 0], first=24)
    assert read() == list(range(24))
    assert read(after=True) == list(range(24, 35))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.json",
        "later.json",
    ]


def refused_worker(topic, path, config, kwargs):
    with pytest.raises((ring.RingKerasError, ValueError)) as caught:
        list(ring.data.shard_kafka(topic, path, **{"config": config, **kwargs}))
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.parametrize(
    ("change", "kwargs", "error", "message"),
    [
        ({"batch_size": 5}, {}, "ValueError", "batch_size=5, not 4"),
        ({"ranks": 3}, {}, "ValueError", "ranks=3, not 2"),
        ({"topics": ["other"]}, {}, "ValueError", "not ['refused']"),
        ({}, {"batch_size": 0}, "ValueError", "at least 1"),
        (None, {"after": "later"}, "ValueError", "ends at offset 7 of partition 0"),
        (None, {"after": "all"}, "ValueError", "have 0"),
        (None, {"after": "nothing"}, "RingKerasError", "No such file"),
        ("{", {}, "ValueError", "has no offsets"),
    ],
)
def test_what_cannot_be_read_is_refused(
    rank_pool, broker, tmp_path, change, kwargs, error, message
):
    path = tmp_path / "offsets.json"
    job = {"topics": ["refused"], "ranks": 2, "batch_size": 4}
    if isinstance(change, str):
        path.write_text(change)
    elif change is not None:
        path.write_text(json.dumps({**job, "offsets": [], **change}))
    for name, end in {"later": 7, "all": 2}.items():
        offsets = [["refused", 0, 0, end]]
        (tmp_path / name).write_text(json.dumps({**job, "offsets": offsets}))
    if "after" in kwargs:
        kwargs = {"after": str(tmp_path / kwargs["after"])}
    arguments = ("refused", str(path), broker.config, {"batch_size": 4, **kwargs})

    first, second = rank_pool(2).run(refused_worker, args=arguments)

    assert first == second
    assert first[0] == error
    assert message in first[1]
    assert path.exists() == (change is not None)


def unreadable_worker(topic, path, config):
    part = ring.data.shard_kafka(topic, path, batch_size=4, config=config)
    with pytest.raises(tf.errors.OpError) as caught:
        list(part)
    return str(caught.value)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (8, "cannot read offsets 8 to 11 of partition 0 of 'short-8'"),
        # It is waited for.
        pytest.param(0, "nothing came from 3 on", marks=pytest.mark.slow),
    ],
)
def test_messages_that_are_not_there_are_missed(
    rank_pool, broker, tmp_path, first, message
):
    topic = f"short-{first}"
    broker.write(topic, [3, 0, 0, 0])
    path = tmp_path / "offsets.json"
    job = {"topics": [topic], "ranks": 1, "batch_size": 4}
    path.write_text(json.dumps({**job, "offsets": [[topic, 0, first, 20]]}))

    (said,) = rank_pool(1).run(
        unreadable_worker, args=(topic, str(path), broker.config)
    )

    assert message in said


RANKS, STEPS, BATCH = 2, 8, 4


def training_worker(directory, config, how):
    """The weights: what each message has been trained on."""
    import keras
    import numpy as np

    ring.init()
    count = RANKS * STEPS * BATCH
    model = keras.Sequential(
        [
            keras.Input((count,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    # The gradient of a weight is how often its message comes.
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.SGD(1.0)),
        lambda y_true, y_pred: -y_pred,
    )

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = int(self.model.optimizer.iterations)
            if how == "killed" and step == 5 and ring.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "told to end" and step == 5 and ring.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    batches = ring.data.shard_kafka(
        "trained", f"{directory}/offsets.json", batch_size=BATCH, config=config
    )

    def example(batch):
        numbers = tf.strings.to_number(batch["value"], tf.int32)
        return tf.one_hot(numbers, count), tf.zeros_like(numbers, tf.float32)[:, None]

    backup = f"{directory}/backup"
    model.fit(
        batches.map(example).prefetch(3),
        verbose=0,
        callbacks=[
            ring.callbacks.RootOnly(keras.callbacks.BackupAndRestore(backup, 2))
            if "kill" in how
            else ring.callbacks.Preemption(backup),
            ring.data.Resume(),
            ring.callbacks.BroadcastGlobalVariables(),
            Dies(),
        ],
    )
    return np.unique(model.get_weights()[0]).tolist()


@pytest.mark.parametrize("how", ["killed", "told to end"])
def test_a_resumed_job_trains_on_each_message_once(tmp_path, how):
    broker = Broker()
    broker.write("trained", [10, 30, 0, 24])
    arguments = (str(tmp_path), broker.config)

    ended = run_ranks(training_worker, RANKS, args=(*arguments, how), check=False)
    assert not any(outcome.ok for outcome in ended)
    broker.write("trained", [3, 3, 3, 3], first=64)
    again = "not killed" if how == "killed" else "not told"
    resumed = run_ranks(training_worker, RANKS, args=(*arguments, again))

    assert resumed == [[1 / (RANKS * BATCH)]] * RANKS


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
