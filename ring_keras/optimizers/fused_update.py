"""Updates of variables in one pass over memory, with the bits of Keras's own.

Keras updates a variable by a dozen of TensorFlow's ops, each of which reads and writes
all of it. One op does the same, rounding after rounding, and a small variable costs a
dozen fewer ops. XLA makes one loop of Keras's ops by itself, so it gets those.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import keras
import tensorflow as tf

from ring_keras import _libraries
from ring_keras import keras_internals as internals
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.optimizers.gradient_values import Gradient

__all__ = ["FusedUpdate"]

# Updates one variable by its gradient.
Update: TypeAlias = Callable[[tf.Variable, tf.Tensor], None]
# Makes it of the optimizer, for variables of a type, with the rate of this step.
MakeUpdate: TypeAlias = Callable[[Any, tf.DType, Any], Update]


class FusedUpdate:
    """How an optimizer updates its variables.

    Args:
        optimizer: One that updates variables itself.
        wanted: Whether our ops are to do that; else Keras's do.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, wanted: bool) -> None:
        self._optimizer = optimizer
        # Of a subclass there is no telling what its update is.
        self._make = _MAKERS.get(type(optimizer)) if wanted else None

    def install(self) -> None:
        """Puts it into the optimizer."""
        internals.replace(self._optimizer, internals.UPDATE, self.update)

    def update(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Updates what it can, and has Keras update the others."""
        make_update = self._make_update()
        updates: dict[tf.DType, Update] = {}
        others = []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            plain = internals.tensorflow_variable(variable)
            if make_update is None or not _can_fuse(gradient, plain):
                others.append((gradient, variable))
                continue
            dtype = plain.dtype.base_dtype
            if dtype not in updates:
                rate = keras.ops.cast(learning_rate, dtype.name)
                updates[dtype] = make_update(self._optimizer, dtype, rate)
            updates[dtype](plain, tf.cast(gradient, dtype))
        if others:
            type(self._optimizer)._backend_update_step(
                self._optimizer,
                [gradient for gradient, _ in others],
                [variable for _, variable in others],
                learning_rate,
            )

    def _make_update(self) -> MakeUpdate | None:
        """What makes updates for what is traced or run now; None: Keras has them."""
        optimizer = self._optimizer
        if getattr(optimizer, "amsgrad", False) or tf.distribute.has_strategy():
            return None
        # Somebody's own.
        if internals.UPDATE_STEP in vars(optimizer):
            return None
        if not tf.executing_eagerly() and is_for_xla(tf.compat.v1.get_default_graph()):
            return None
        return self._make


def _can_fuse(gradient: Gradient, variable: tf.Variable) -> bool:
    return (
        isinstance(gradient, tf.Tensor)
        and variable.dtype.base_dtype in (tf.float32, tf.float64)
        and gradient.dtype in (variable.dtype.base_dtype, tf.float16, tf.bfloat16)
        # Keras's ops take one number for all elements, too.
        and gradient.shape.is_compatible_with(variable.shape)
        # There are no kernels for GPUs, whose memory is fast.
        and "GPU" not in variable.device
    )


def _descent(optimizer: Any, dtype: tf.DType, rate: tf.Tensor) -> Update:
    """Of `keras.optimizers.SGD`."""
    if not optimizer.momentum:

        def descend(variable: tf.Variable, gradient: tf.Tensor) -> None:
            _libraries.ops().ring_keras_update_by_descent(
                variable=variable.handle, rate=rate, gradient=gradient
            )

        return descend

    decay = keras.ops.cast(optimizer.momentum, dtype.name)
    momentums = internals.private(optimizer, internals.SGD_MOMENTUM)

    def roll(variable: tf.Variable, gradient: tf.Tensor) -> None:
        momentum = momentums[_index(optimizer, variable)]
        _libraries.ops().ring_keras_update_by_momentum(
            variable=variable.handle,
            momentum=momentum.value.handle,
            rate=rate,
            decay=decay,
            gradient=gradient,
            nesterov=optimizer.nesterov,
        )

    return roll


def _adam(optimizer: Any, dtype: tf.DType, rate: tf.Tensor) -> Update:
    """Of `keras.optimizers.Adam` and `AdamW`, whose decay comes before."""
    # As Keras computes it: `cast` makes float32 of a number before anything else, where
    # arithmetic does not.
    ops = keras.ops
    step = ops.cast(optimizer.iterations + 1, dtype.name)
    first = ops.power(ops.cast(optimizer.beta_1, dtype.name), step)
    second = ops.power(ops.cast(optimizer.beta_2, dtype.name), step)
    rate = rate * ops.sqrt(1 - second) / (1 - first)
    momentums = internals.private(optimizer, internals.ADAM_MOMENTUM)
    velocities = internals.private(optimizer, internals.ADAM_VELOCITY)

    def update(variable: tf.Variable, gradient: tf.Tensor) -> None:
        index = _index(optimizer, variable)
        _libraries.ops().ring_keras_update_by_adam(
            variable=variable.handle,
            momentum=momentums[index].value.handle,
            velocity=velocities[index].value.handle,
            rate=rate,
            momentum_share=tf.constant(1 - optimizer.beta_1, dtype),
            velocity_share=tf.constant(1 - optimizer.beta_2, dtype),
            epsilon=tf.constant(optimizer.epsilon, dtype),
            gradient=gradient,
        )

    return update


def _index(optimizer: Any, variable: tf.Variable) -> int:
    """Its place among those that the optimizer was built with."""
    found: int = internals.private(optimizer, internals.VARIABLE_INDEX)(variable)
    return found


_MAKERS: Final[dict[type, MakeUpdate]] = {
    keras.optimizers.SGD: _descent,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
}
