"""Trains on the workers of a Dask cluster, here one of two processes.

    pip install 'ring-keras[dask]'
    python examples/dask_digits.py

With `--scheduler tcp://HOST:8786` it uses a running cluster.
"""

import cloudpickle
import digits_training
import distributed
from absl import app, flags

import ring_keras.dask

FLAGS = flags.FLAGS
flags.DEFINE_string("scheduler", None, "Of a cluster; by default one of this host.")


def main(_: list[str]) -> None:
    """Asks the cluster to train."""
    # The workers of a cluster do not have this folder's files.
    cloudpickle.register_pickle_by_value(digits_training)
    address = FLAGS.scheduler or distributed.LocalCluster(
        n_workers=2, threads_per_worker=1
    )
    with distributed.Client(address) as client:
        results = ring_keras.dask.run(
            client, digits_training.train, [FLAGS.epochs, FLAGS.output]
        )
    accuracy, _ = results[0]
    print(f"test accuracy {accuracy:.2%} on {len(results)} rank(s)")


if __name__ == "__main__":
    app.run(main)
