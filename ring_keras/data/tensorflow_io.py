"""The optional package tensorflow-io, where it works."""

import importlib
from types import ModuleType

import tensorflow as tf

__all__ = ["tensorflow_io"]

_WORKS_WITH = "2.16"


def tensorflow_io() -> ModuleType:
    """Imports `tensorflow_io`, or says why it cannot be imported.

    From then on `tf.data` and `tf.io.gfile` open `http://`, `https://`, `s3://`
    and other addresses, and the module has more kinds of datasets, such as
    `IODataset.from_parquet`. Shard the list of files, or the dataset, like any
    other.

    Examples:
        With TensorFlow 2.16:

        >>> tfio = ring.data.tensorflow_io()  # doctest: +SKIP
        >>> lines = tf.data.TextLineDataset("http://host/train.csv")  # doctest: +SKIP

    Returns:
        The module.

    Raises:
        ImportError: If the installed TensorFlow is not 2.16, the newest that
            tensorflow-io's libraries load with, or if the package is missing.
    """
    if not tf.__version__.startswith(f"{_WORKS_WITH}."):
        raise ImportError(
            "[RK710] "
            "tensorflow-io 0.37.1, its newest release, loads with TensorFlow "
            f"{_WORKS_WITH} only. Received: TensorFlow {tf.__version__}. Run `pip "
            f'install "tensorflow=={_WORKS_WITH}.*" "ring-keras[io]"`; newer ones read '
            "local files and gs:// through tf.io.gfile, without it."
        )
    try:
        return importlib.import_module("tensorflow_io")
    except ModuleNotFoundError:
        raise ImportError(
            "[RK710] "
            'tensorflow-io is not installed. Run `pip install "ring-keras[io]"`.'
        ) from None
