"""Puts into an optimizer the hook of its kind."""

from collections.abc import Iterable

import keras

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import has_peers
from ring_keras.optimizers.loss_scale_hook import LossScaleHook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.state_division import StateDivision
from ring_keras.optimizers.update_hook import UpdateHook
from ring_keras.optimizers.wrapper_hook import WrapperHook

__all__ = ["divisions_of", "install_hook", "shards_state"]


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


def divisions_of(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[StateDivision]:
    """Of those of these, or in them, whose state the ranks divide: how they do."""
    hooks = map(OptimizerHook.of, internals.innermost(optimizers))
    return [
        hook.sharded.division
        for hook in hooks
        if isinstance(hook, UpdateHook) and hook.sharded is not None
    ]


def shards_state(model: keras.Model) -> bool:
    """Whether ranks divide the state of one of a model's optimizers."""
    hooks = map(OptimizerHook.of, internals.innermost_optimizers(model))
    return any(
        hook.options.shard_state and has_peers(hook.process_set)
        for hook in hooks
        if hook is not None
    )
