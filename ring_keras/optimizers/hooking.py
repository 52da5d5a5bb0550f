"""Puts into an optimizer the hook of its kind."""

import keras

from ring_keras import keras_internals as internals
from ring_keras.optimizers.loss_scale_hook import LossScaleHook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.update_hook import UpdateHook
from ring_keras.optimizers.wrapper_hook import WrapperHook

__all__ = ["install_hook"]


def install_hook(
    optimizer: keras.optimizers.Optimizer,
    options: ReductionOptions,
    *,
    adopted: bool = False,
) -> OptimizerHook:
    """Makes an optimizer reduce its gradients; see `OptimizerHook`."""
    kind: type[OptimizerHook] = UpdateHook
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        kind = LossScaleHook
    elif internals.is_wrapper(optimizer):
        kind = WrapperHook
    hook = kind(optimizer, options, install_hook, adopted=adopted)
    hook.install()
    return hook
