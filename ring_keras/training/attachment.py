"""Prepares a model for a distributed `fit`; every callback here begins so."""

import keras
import tensorflow as tf
from absl import logging

from ring_keras import _libraries
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank
from ring_keras.layers.global_moments import synchronize_flagged
from ring_keras.optimizers.hooking import install_hook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.epoch_result import EpochResult
from ring_keras.training.evaluation_step import EvaluationStep
from ring_keras.training.train_function import TrainFunction
from ring_keras.training.train_step import DistributedTrainStep

__all__ = ["attach"]


def attach(
    model: keras.Model, *, adopt_optimizers: bool = False, retrace: bool = False
) -> tuple[DistributedTrainStep, TrainFunction]:
    """Hooks the model's steps and what the user has distributed of it.

    That is optimizers, and layers with `synchronized=True`.

    Doing it again changes nothing, and traces nothing again.

    Args:
        model: A compiled model, in `on_train_begin` or later.
        adopt_optimizers: Whether to hook optimizers too that
            `DistributedOptimizer` has not seen, such as a loaded model's.
        retrace: Whether to have Keras make a new train function in any case.

    Returns:
        The model's train step and its train function.
    """
    # Keras makes an optimizer that nobody uses for a model that has its own.
    adopting = process_set_of(model) if adopt_optimizers else None
    for optimizer in internals.optimizers_of(model):
        retrace |= _hook(optimizer, adopting)
    retrace |= synchronize_flagged(model)
    EpochResult.of(model)
    EvaluationStep.prepare(model)
    step = DistributedTrainStep.of(model)
    if step is None:
        step = DistributedTrainStep(model)
        step.install()
        retrace = True
    retrace |= step.outdated()
    if (
        model.jit_compile
        and step.process_set().size() > 1
        and not _libraries.has_xla_kernels()
    ):
        if rank() == 0:
            logging.log_first_n(
                logging.WARNING,
                "ring_keras: training '%s' without XLA (jit_compile=False): "
                "collectives have kernels for XLA on TensorFlow 2.20 and newer, "
                "this is %s.",
                1,
                model.name,
                tf.__version__,
            )
        model.jit_compile = False
        retrace = True
    function = internals.train_function(model)
    if not isinstance(function, TrainFunction):
        function = TrainFunction(model, function)
        internals.set_train_function(model, function)
    if retrace:
        function.retrace()
    return step, function


def _hook(optimizer: keras.optimizers.Optimizer, adopting: ProcessSet | None) -> bool:
    """Hooks one optimizer; returns whether it was not hooked before.

    Args:
        optimizer: Of a model.
        adopting: The ranks for which it is distributed if it is not yet; or it is not.
    """
    if OptimizerHook.of(optimizer) is not None:
        return False
    # compile() may have put a LossScaleOptimizer around a hooked optimizer.
    for inner in internals.inner_optimizers(optimizer):
        hook = OptimizerHook.of(inner)
        if hook is not None:
            install_hook(optimizer, hook.options, adopted=hook.adopted)
            return True
    if adopting is None:
        return False
    install_hook(optimizer, ReductionOptions(process_set=adopting), adopted=True)
    return True
