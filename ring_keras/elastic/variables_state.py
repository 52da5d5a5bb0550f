"""States of TensorFlow's variables, and of Keras's models."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras.elastic.object_state import ObjectState
from ring_keras.ops.broadcast_variables import broadcast_variables

__all__ = ["KerasState", "TensorFlowState"]

# A `tf.Variable` or a `keras.Variable`.
_Variable = Any


class TensorFlowState(ObjectState):
    """Variables, and plain values beside them.

    Examples:
        >>> weight = tf.Variable(1.0)
        >>> state = ring.elastic.TensorFlowState([weight], step=0)
        >>> _ = weight.assign(2.0)
        >>> state.restore()
        >>> weight.numpy()
        np.float32(1.0)

    Args:
        variables: What to keep, restore, and give to other ranks: the same on every
            rank, in the same order.
        **values: See `ObjectState`.
    """

    def __init__(self, variables: Sequence[_Variable], **values: Any) -> None:
        super().__init__(**values)
        self._variables = list(variables)
        self._saved_variables: list[Any] = []
        self.save()

    def save(self) -> None:
        """Keeps a copy of variables and values in memory."""
        # All or nothing: an interrupt must not leave half of another step.
        saved = [tf.convert_to_tensor(v).numpy() for v in self._variables]
        super().save()
        self._saved_variables = saved

    def restore(self) -> None:
        """Goes back to what was kept last."""
        super().restore()
        for variable, value in zip(self._variables, self._saved_variables, strict=True):
            variable.assign(value)

    def take_from(self, source: int) -> None:
        """Takes variables and values of that rank; a collective."""
        broadcast_variables(self._variables, source, name="elastic/variables")
        super().take_from(source)


class KerasState(TensorFlowState):
    """A model's and its optimizer's variables, and plain values beside them.

    Examples:
        >>> model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        >>> state = ring.elastic.KerasState(model, epoch=0)
        >>> state.commit()

    Args:
        model: A model that is built.
        optimizer: What trains it. Defaults to the one that it was compiled with.
        **values: See `ObjectState`.

    Raises:
        ValueError: If the model is not built: it has no variables yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        if not model.built:
            raise ValueError(
                f"{type(self).__name__} needs a model that is built. Begin the model "
                "with keras.Input, or call model.build(input_shape) before."
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        variables = list(model.weights)
        if self.optimizer is not None:
            # A rank that joins has not trained, and its optimizer no variables yet.
            if not self.optimizer.built:
                self.optimizer.build(model.trainable_variables)
            variables += self.optimizer.variables
        super().__init__(variables, **values)
