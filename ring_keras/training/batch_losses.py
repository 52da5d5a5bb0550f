"""Losses that look at the whole batch, of which each rank has a part."""

from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank

__all__ = [
    "warn_of_added_losses",
    "warn_of_batch_losses",
    "warn_of_other_weights",
    "warn_of_own_lengths",
    "warn_of_own_sums",
]


def warn_of_batch_losses(model: keras.Model) -> None:
    """Says on the first rank which of a model's losses compare its examples."""
    for name in internals.batch_losses(model) if rank() == 0 else ():
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: [RK655] "
            "loss '%s' of model '%s' compares whole batches, and each rank has a "
            "part of the batch, so the update is not that of one process. If it takes "
            "an axis, give it one that leaves out the first, such as axis=(1, 2, 3): "
            "then each example has a loss of its own.",
            1,
            name,
            model.name,
        )


def warn_of_added_losses(model: keras.Model) -> None:
    """Says that layers have added some, where ranks count by their sample weights."""
    others = "layers that add losses, of the batch maybe"
    warn_of_other_weights(model, others, "sample weights")


def warn_of_other_weights(model: keras.Model, others: str, weights: str) -> None:
    """Says on the first rank that not all losses are divided by what ranks count by."""
    if rank() == 0:
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: '%s' has %s, and a loss with "
            "reduction='mean_with_sample_weight': ranks are weighted by their %s, "
            "so the update is not exactly that of one process.",
            1,
            model.name,
            others,
            weights,
        )


def warn_of_own_sums(model: keras.Model) -> None:
    """Says on the first rank that what the model makes of such losses is a sum, too.

    Args:
        model: A compiled loss of which adds up its batch.
    """
    if rank() == 0 and internals.has_own_losses(model):
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: [RK603] "
            "a loss of model '%s' adds up its batch, and the model has a "
            "compute_loss() or a train_step() of its own. What these make of that "
            "loss is taken for a sum over the batch, too. If it is a mean, its "
            "gradient is too large by the number of ranks: take the mean by the "
            "loss's default reduction.",
            1,
            model.name,
        )


def warn_of_own_lengths(model: keras.Model, data: Any) -> None:
    """Says so where each rank's batch may have a length of its own beside the rows.

    A mean is then divided by another number of entries on each rank.
    """
    if not isinstance(data, tuple) or len(data) < 2 or rank() != 0:
        return
    leaves = [one for one in keras.tree.flatten(data[1]) if keras.ops.is_tensor(one)]
    # Of TensorFlow, in a graph, where some are unknown.
    shapes = [one.shape for one in leaves if getattr(one.shape, "rank", 0) is not None]
    varies = [shape for shape in shapes if None in tuple(shape)[1:]]
    if varies and internals.divides_by_lengths(model):
        logging.log_first_n(
            logging.WARNING,
            "ring_keras: [RK667] "
            "targets of model '%s' have the shape %s: a rank's batch may be longer "
            "than another one's, and Keras divides a loss of each step by the rank's "
            "own length, so the update is not that of one process. Give padding a "
            "sample weight of 0 and the loss reduction='mean_with_sample_weight', or "
            "all batches one length; if they have it, say so with tf.ensure_shape.",
            1,
            model.name,
            varies[0],
        )
