"""Optimizers of TensorFlow 1, for `tf.compat.v1.Session`."""

import dataclasses
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.horovod._absent import AbsentError, refuse_unless_default
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.values.reduce_op import Adasum

__all__ = ["SessionOptimizer"]


class SessionOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer so that `compute_gradients` reduces over the ranks.

    Every rank builds the training graph, and while it does, the ranks compare what
    gradients they have.

    Args:
        optimizer: Computes gradients, and applies them.
        name: Of the operations; "Distributed" and the optimizer's class by default.
        use_locking: As all optimizers of TensorFlow 1 take it.
        **options: As for `ReductionOptions.read`.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        name: str | None = None,
        use_locking: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        if options["op"] == Adasum:
            raise AbsentError(
                "[RK430] "
                "For optimizers of tf.compat.v1.train Horovod's Adasum combines "
                "updates of the weights, which ring_keras does not; use "
                "op=Average, or an optimizer of Keras 3. Received: op=Adasum"
            )
        refuse_unless_default(
            "backward_passes_per_step",
            options.pop("backward_passes_per_step", 1),
            1,
            "Optimizers of tf.compat.v1.train apply each step's gradients at once.",
        )
        options.pop(
            "average_aggregated_gradients", None
        )  # Of one pass, it is the same.
        self._optimizer = optimizer
        options.setdefault("local_layers", None)
        self._options = ReductionOptions.read(**options)
        self._reducer = GradientReducer(self._options)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable on its rank."""
        keys = self._options.local_variables | {internals.variable_key(var)}
        self._options = dataclasses.replace(self._options, local_variables=keys)
        self._reducer = GradientReducer(self._options)

    def compute_gradients(
        self, *args: Any, **kwargs: Any
    ) -> list[tuple[tf.Tensor | tf.IndexedSlices | None, Any]]:
        """The reduced gradients, each with its variable.

        Args:
            *args: As for the wrapped optimizer.
            **kwargs: The same.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        gradients = [
            tf.ensure_shape(gradient, variable.shape)
            if tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices)
            else gradient
            for gradient, variable in pairs
        ]
        with tf.name_scope(f"{self._name}_Allreduce"):
            reduced = self._reducer.reduce(gradients, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer's, as the methods below."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's slot."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        names: list[str] = self._optimizer.get_slot_names()
        return names

    def variables(self) -> list[Any]:
        """The wrapped optimizer's variables."""
        variables: list[Any] = self._optimizer.variables()
        return variables
