"""Trains on the messages of a Kafka topic; the next start trains on later messages.

    pip install 'ring-keras[kafka]'
    ringrun -np 2 python examples/kafka_stream.py --brokers=broker:9092 --directory=job

The values of the messages are "x,y". The job trains on each message once, however
often it is killed: pass n has the messages of `offsets-n.json`, and ends with
`model-n.keras`.
"""

import itertools
from pathlib import Path

import keras
import tensorflow as tf
from absl import app, flags

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_string("brokers", None, "Addresses of brokers.", required=True)
flags.DEFINE_string("directory", None, "Which all hosts share.", required=True)
flags.DEFINE_string("topic", "points", "Where the messages are.")
flags.DEFINE_integer("batch_size", 32, "Messages per step and rank.", lower_bound=2)


def build_model() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    return model


def parse(batch):
    """The examples of a batch of messages."""
    x, y = tf.io.decode_csv(batch["value"], [0.0, 0.0])
    return x[:, None], y[:, None]


def main(_: list[str]) -> None:
    """One pass: the one that was interrupted, or else the next."""
    ring.init()
    directory = Path(FLAGS.directory).absolute()
    number = ring.broadcast_object(
        next(n for n in itertools.count(1) if not model_file(directory, n).exists())
    )
    after = None
    if number == 1:
        model = build_model()
    else:
        after = directory / f"offsets-{number - 1}.json"
        # With the optimizer's number of steps.
        model = keras.models.load_model(model_file(directory, number - 1))

    resume = ring.data.Resume()
    batches = ring.data.shard_kafka(
        FLAGS.topic,
        directory / f"offsets-{number}.json",
        batch_size=FLAGS.batch_size,
        config={"bootstrap.servers": FLAGS.brokers},
        resume=resume,
        after=after,
    )
    model.fit(
        batches.map(parse).prefetch(2),
        verbose=0,
        callbacks=[
            ring.callbacks.Preemption(directory / "backup"),
            resume,
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )
    if ring.rank() == 0:
        unfinished = directory / "unfinished.keras"
        model.save(unfinished)
        unfinished.replace(model_file(directory, number))
    print(f"pass {number} ended with step {int(model.optimizer.iterations)}")


def model_file(directory: Path, number: int) -> Path:
    """The model at the end of a pass."""
    return directory / f"model-{number}.keras"


if __name__ == "__main__":
    app.run(main)
