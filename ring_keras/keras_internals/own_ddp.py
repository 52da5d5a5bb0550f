"""Keras's own `DistributedDataParallel` on torch, which came with Keras 3.16."""

import functools
from collections.abc import Callable

import keras

from ring_keras.keras_internals.names import DDP_MODEL, INITIALIZE_DDP

__all__ = ["is_in_own_ddp", "leave_own_ddp_out"]

# On a model for which Keras makes none.
_LEFT_OUT = "_ring_keras_leaves_ddp_out"


def is_in_own_ddp(model: keras.Model) -> bool:
    """Whether Keras has wrapped a model, so that each backward pass is averaged."""
    return getattr(model, DDP_MODEL, None) is not None


@functools.cache
def leave_own_ddp_out(of: Callable[[keras.Model], bool]) -> None:
    """From now on Keras wraps none of some models, nor adds up their metrics.

    It would wherever `torch.distributed` has been initialized: gradients would be
    averaged twice, and metrics counted twice.

    Args:
        of: Whether a model is one of these, when Keras makes its train, test or
            predict function.
    """
    make = getattr(keras.Model, INITIALIZE_DDP, None)
    if make is None:
        return
    owner = next(one for one in keras.Model.__mro__ if INITIALIZE_DDP in vars(one))
    of_all_ranks = keras.Model.get_metrics_result

    @functools.wraps(make)
    def initialize(model: keras.Model) -> None:
        left_out = of(model)
        vars(model)[_LEFT_OUT] = left_out
        if not left_out:
            make(model)

    # Keras calls it in what torch compiles: it only looks at the model.
    @functools.wraps(of_all_ranks)
    def get_metrics_result(model: keras.Model) -> dict[str, object]:
        if getattr(model, _LEFT_OUT, False):
            own: dict[str, object] = super(owner, model).get_metrics_result()
            return own
        everyones: dict[str, object] = of_all_ranks(model)
        return everyones

    setattr(keras.Model, INITIALIZE_DDP, initialize)
    keras.Model.get_metrics_result = get_metrics_result
