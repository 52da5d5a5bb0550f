"""Makes an average of gradients right for losses that add up their batch.

In an average weighted by numbers of examples a rank counts for its share of them,
which is what a mean over the global batch wants. Of a sum over the batch every
rank's part counts in full: its gradient is divided by the rank's share beforehand,
so that the average gives the sum. The loss that is reported stays the rank's own.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank
from ring_keras.optimizers.meeting_hook import MeetingHook
from ring_keras.optimizers.step_scope import StepScope
from ring_keras.training.batch_losses import warn_of_batch_losses, warn_of_own_sums
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["gradients_multiplied", "gradients_of_those_apart"]


@contextlib.contextmanager
def gradients_multiplied(
    losses: Iterable[keras.losses.Loss], factor: tf.Tensor | float
) -> Iterator[None]:
    """Multiplies the gradients, not the values, of losses that are called inside.

    Args:
        losses: Losses of Keras; their method `call` is replaced meanwhile.
        factor: A number, or a scalar tensor.
    """
    unique = list({id(loss): loss for loss in losses}.values())
    before = [internals.replacement(loss, internals.LOSS_CALL) for loss in unique]
    for loss in unique:
        _replace(loss, factor)
    try:
        yield
    finally:
        for loss, method in zip(unique, before, strict=True):
            internals.restore(loss, internals.LOSS_CALL)
            if method is not None:
                internals.replace(loss, internals.LOSS_CALL, method)


def gradients_of_those_apart(
    model: keras.Model,
    losses: Sequence[keras.losses.Loss],
    hooks: Iterable[MeetingHook],
    scope: StepScope,
) -> contextlib.AbstractContextManager[None]:
    """Sees to losses that add up where ranks train apart, or hosts do.

    A rank applies the sum of its own batch as it is, and a host that of all of its
    ranks' batches, of which it takes an average. Collective the first time.

    Args:
        model: What takes a step now.
        losses: Those of its losses that add up their batch.
        hooks: Of its optimizers whose ranks meet.
        scope: Of that step, which is entered.
    """
    hook = next((one for one in hooks if one.hosts_are_apart), None)
    if hook is not None:
        warn_of_batch_losses(model)
    if not losses:
        return contextlib.nullcontext()
    hosts = None if hook is None else hook.agree_on_hosts()
    if hook is None or hosts is None:
        scope.summed_losses_for = ReduceOp.AVERAGE, [rank()]
        return contextlib.nullcontext()
    if hosts.count < scope.process_set.size():
        warn_of_own_sums(model)
    scope.summed_losses_for = ReduceOp.AVERAGE, hosts.ranks
    return gradients_multiplied(losses, hosts.sum_factor(hook.step_weight()))


def _replace(loss: keras.losses.Loss, factor: tf.Tensor | float) -> None:
    call = loss.call

    def multiplied(*args: Any, **kwargs: Any) -> Any:
        values = tf.convert_to_tensor(call(*args, **kwargs))
        # Its own code has made one number of the batch: as elsewhere that is a mean.
        if internals.is_not_reduced(loss) and values.shape.rank == 0:
            return values
        return _with_gradient_times(values, factor)

    internals.replace(loss, internals.LOSS_CALL, multiplied)


def _with_gradient_times(values: tf.Tensor, factor: tf.Tensor | float) -> tf.Tensor:
    """The values, and `factor` times their gradient."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * tf.cast(factor, upstream.dtype)

    result = tf.custom_gradient(lambda x: (tf.identity(x), gradient))(values)
    mask = getattr(values, internals.MASK, None)
    if mask is not None:
        setattr(result, internals.MASK, mask)
    return result
