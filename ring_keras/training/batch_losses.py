"""Losses that compare whole batches, of which each rank has a part."""

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank

__all__ = ["warn_of_batch_losses"]


def warn_of_batch_losses(model: keras.Model) -> None:
    """Says on the first rank which of a model's compiled losses do."""
    for name in internals.batch_losses(model) if rank() == 0 else ():
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: [RK655] "
            "loss '%s' of model '%s' compares whole batches, and each rank has a "
            "part of the batch, so the update is not that of one process. Give it "
            "an axis that leaves out the first, such as axis=(1, 2, 3): then each "
            "example has a loss of its own.",
            1,
            name,
            model.name,
        )
