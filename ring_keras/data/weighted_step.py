"""A step of a training loop of one's own, with batches of different sizes."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.optimizers.step_scope import StepScope, StepWeight, enter_step
from ring_keras.states.own_state import own_state
from ring_keras.training import uneven_batches

__all__ = ["weighted_step"]


@contextlib.contextmanager
def weighted_step(
    batch: Any,
    *,
    process_set: ProcessSet | None = None,
    model: keras.Model | None = None,
) -> Iterator[tuple[Any, tf.Tensor]]:
    """Makes a rank count by its examples in the averages of gradients inside.

    `fit` does this by itself. In a loop of your own without it, all ranks count
    alike, whatever the sizes of their batches:

    ```python
    @tf.function
    def train_step(batch):
        with ring.data.weighted_step(batch, model=model) as ((x, y), count):
            with ring.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        mean_loss.update_state(loss, sample_weight=count)

    for batch in ring.data.join(dataset):
        train_step(batch)
    ```

    The loss must be a mean over the batch. Averages of gradients with
    `op=ring.Average` are weighted, and so are gradients that come from other ranks'
    losses, through a synchronized batch normalization or a collective. To add gradients
    up, use `DistributedGradientTape(tape, op=ring.Sum)`; a `DistributedOptimizer` with
    `op=ring.Sum` refuses gradients that came so (RK416).

    Examples:
        A rank with 3 examples counts three times as much as one with 1:

        >>> batch = tf.fill([3 - 2 * ring.rank()], float(ring.rank()))
        >>> weight = tf.Variable(0.0)
        >>> with ring.data.weighted_step(batch) as (values, count):
        ...     with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        ...         loss = tf.reduce_mean(weight * values)
        ...     gradient = tape.gradient(loss, [weight])[0]
        >>> gradient.numpy()
        np.float32(0.25)

    Args:
        batch: A batch, whose first dimension is that of the examples. It may be
            empty, from `join`, and may have padding rows, from `shard`.
        process_set: Ranks that train together. Defaults to all.
        model: On a rank that has no examples in this step, its state stays as it is:
            moving statistics, and metrics of its own. Without it a row of zeros counts
            there, as for `BatchNormalization`.

    Yields:
        The batch to compute with, without padding, and its number of examples, a
        scalar of float64. If there are none, the batch is one row of zeros.
    """
    process_set = process_set or global_process_set
    may_have_padding = uneven_batches.may_have_padding(batch)
    if may_have_padding:
        batch = uneven_batches.without_padding(batch)
    count = uneven_batches.example_count(batch)
    if count is None:
        raise ValueError(
            "A batch must have a tensor with a dimension for its examples. "
            f"Received: batch={batch}"
        )
    present = None
    if may_have_padding or uneven_batches.may_be_empty(batch):
        batch = uneven_batches.at_least_one_row(batch)
        present = count > 0
    scope = StepScope(process_set, StepWeight(count, process_set), present)
    undone: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if model is not None and present is not None:
        undone = uneven_batches.undone_if(count == 0, own_state(model), model.metrics)
    with undone, enter_step(scope):
        yield batch, count
