"""Every optimizer that Keras ships, and what one can be told to do."""

from __future__ import annotations

import copy
import functools
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras

import ring_keras as ring
from support import training
from support.features import Feature
from support.features.compare import compare

optimizers = keras.optimizers


class OwnMomentum(keras.optimizers.Optimizer):
    """An optimizer as users write them: `build` and `update_step`."""

    def build(self, variables):
        super().build(variables)
        self.averages = self.add_optimizer_variables(variables, "average")

    def update_step(self, gradient, variable, learning_rate):
        average = self.averages[self._get_variable_index(variable)]
        self.assign(average, 0.8 * average + 0.2 * gradient)
        self.assign_sub(variable, learning_rate * average)


def _multi_optimizer() -> optimizers.Optimizer:
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.SGD(0.1, momentum=0.9), {".*bias": optimizers.Adam(0.01)}
        )
    )


def _multi_optimizer_by_function() -> optimizers.Optimizer:
    """It learns of its optimizers only when it is built."""
    sgd, adam = optimizers.SGD(0.1, momentum=0.9), optimizers.Adam(0.01)
    return optimizers.MultiOptimizer(
        lambda variable: adam if variable.path.endswith("bias") else sgd
    )


def _loss_scale(inner: Callable[[], optimizers.Optimizer]) -> optimizers.Optimizer:
    return optimizers.LossScaleOptimizer(inner(), initial_scale=1024.0)


SGD = functools.partial(optimizers.SGD, 0.1)
ADAM = functools.partial(optimizers.Adam, 0.01)

_SHIPPED: dict[str, Callable[[], optimizers.Optimizer]] = {
    "SGD": SGD,
    "SGD, momentum": lambda: SGD(momentum=0.9),
    "SGD, nesterov": lambda: SGD(momentum=0.9, nesterov=True),
    "Adam": ADAM,
    "Adam, amsgrad": lambda: ADAM(amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
    "RMSprop, centered, momentum": lambda: optimizers.RMSprop(
        0.01, momentum=0.9, centered=True
    ),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "Lion": lambda: optimizers.Lion(0.001),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "ScheduleFreeAdamW": lambda: optimizers.ScheduleFreeAdamW(0.01),
    "MultiOptimizer, by pattern": _multi_optimizer,
    "MultiOptimizer, by function": _multi_optimizer_by_function,
    "LossScaleOptimizer": lambda: _loss_scale(SGD),
    "LossScaleOptimizer of MultiOptimizer": lambda: _loss_scale(_multi_optimizer),
    "a class of one's own": lambda: OwnMomentum(0.1),
}

_OPTIONS: dict[str, Callable[[], optimizers.Optimizer]] = {
    "clipnorm": lambda: optimizers.AdamW(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.AdamW(0.01, global_clipnorm=0.05),
    "clipvalue": lambda: ADAM(clipvalue=0.01),
    "weight_decay": lambda: SGD(weight_decay=0.01),
    "loss_scale_factor": lambda: SGD(loss_scale_factor=128.0),
    "use_ema": lambda: SGD(use_ema=True, ema_momentum=0.9),
    "use_ema, ema_overwrite_frequency": lambda: ADAM(
        use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
    ),
    "gradient_accumulation_steps": lambda: SGD(gradient_accumulation_steps=2),
    "gradient_accumulation_steps, global_clipnorm": lambda: ADAM(
        gradient_accumulation_steps=2, global_clipnorm=0.05
    ),
    "gradient_accumulation_steps in LossScaleOptimizer": lambda: _loss_scale(
        lambda: SGD(gradient_accumulation_steps=2)
    ),
    "learning rate schedule": lambda: optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.1, 5, 0.8)
    ),
}


def _saved_and_loaded(model: keras.Model) -> keras.Model:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.keras"
        model.save(path)
        return keras.models.load_model(path)


def _cloned(model: keras.Model) -> keras.Model:
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    # A clone is not compiled, and an optimizer serves one model.
    config = model.optimizer.get_config()
    return training.compile_model(clone, optimizers.Adam.from_config(config))


def _compiled_from_config(model: keras.Model) -> keras.Model:
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile_from_config(model.get_compile_config())
    return clone


def _pickled(model: keras.Model) -> keras.Model:
    return pickle.loads(pickle.dumps(model))


def _built(
    copy_model: Callable[[keras.Model], keras.Model], model: keras.Model
) -> keras.Model:
    model.build((None, 6))
    model.optimizer.build(model.trainable_variables)
    return copy_model(model)


def _distribute_inner(optimizer: optimizers.Optimizer) -> optimizers.Optimizer:
    """What a script does that wraps what `DistributedOptimizer` returned."""
    ring.DistributedOptimizer(optimizer.inner_optimizer)
    return optimizer


def _exists(name: str) -> bool:
    """Older Keras lacks some."""
    classes = name.split(",", maxsplit=1)[0].split(" of ")
    return all(hasattr(optimizers, one) for one in classes if one[0].isupper())


SHIPPED = [
    Feature(name, functools.partial(compare, make))
    for name, make in _SHIPPED.items()
    if _exists(name)
]

COPIES = [
    Feature(
        name,
        functools.partial(compare, ADAM, copy=functools.partial(_built, copy_model)),
    )
    for name, copy_model in {
        "load_model": _saved_and_loaded,
        "clone_model": _cloned,
        "compile_from_config": _compiled_from_config,
        "pickle": _pickled,
        "copy.deepcopy": copy.deepcopy,
    }.items()
]

OPTIONS = [
    *(
        Feature(name, functools.partial(compare, make))
        for name, make in _OPTIONS.items()
    ),
    Feature(
        "LossScaleOptimizer(DistributedOptimizer(...))",
        functools.partial(
            compare, lambda: _loss_scale(SGD), distribute=_distribute_inner
        ),
    ),
    Feature(
        'compile("adam") and the callbacks alone',
        functools.partial(compare, lambda: "adam", distribute=lambda name: name),
    ),
]
