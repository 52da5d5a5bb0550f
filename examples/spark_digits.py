"""Trains as a barrier stage of Spark, here on two threads of the driver.

    pip install 'ring-keras[spark]'
    python examples/spark_digits.py

With `--master=spark://HOST:7077` it uses that cluster.
"""

import digits_training
from absl import app, flags
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import ring_keras.spark

FLAGS = flags.FLAGS
flags.DEFINE_string("master", "local[2]", "Master of the Spark cluster.")


def main(_: list[str]) -> None:
    """Asks Spark to train."""
    # The executors of a cluster do not have this folder's files.
    cloudpickle.register_pickle_by_value(digits_training)
    session = SparkSession.builder.master(FLAGS.master).getOrCreate()
    results = ring_keras.spark.run(
        digits_training.train, [FLAGS.epochs, FLAGS.output], num_proc=2
    )
    session.stop()
    accuracy, _ = results[0]
    print(f"test accuracy {accuracy:.2%} on {len(results)} rank(s)")


if __name__ == "__main__":
    app.run(main)
