"""A model is trained on each message once, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import tensorflow as tf
from support import training
from support.kafka_training import BATCH, COUNT, build, callbacks_of, examples
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras.data.kafka_pass import read_pass

pytest.importorskip("confluent_kafka", reason="needs the extra kafka")

import confluent_kafka as kafka
from support.kafka_broker import Broker

RANKS, EPOCHS = 2, 2


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


@pytest.mark.slow
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


def documented_worker(path, brokers, code):
    before = signal.getsignal(signal.SIGTERM)
    model = training.distributed_model(3)
    names = {"ring": ring, "tf": tf, "path": path, "brokers": brokers, "model": model}
    exec(code, names)
    signal.signal(signal.SIGTERM, before)
    return training.as_bytes(model.get_weights()), int(model.optimizer.iterations)


def test_what_the_docs_show_runs(rank_pool, tmp_path):
    broker = Broker()
    text = (Path(__file__).parents[3] / "docs/data.md").read_text()
    code = text.split("## Kafka\n")[1].split("```python\n")[1].split("```")[0]
    x, y = training.arrays()
    lines = [
        ",".join(map(str, row)) for row in zip(*x[:100].T, y[:100, 0], strict=True)
    ]
    broker.write_values("clicks", 2, lines)
    arguments = (str(tmp_path), broker.config["bootstrap.servers"], code)

    results = rank_pool(2).run(documented_worker, args=arguments)

    assert results[0] == results[1]
    assert results[0][1] == 2
