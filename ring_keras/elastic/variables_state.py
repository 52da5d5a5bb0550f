"""States of TensorFlow's variables, and of Keras's models."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.elastic.object_state import ObjectState
from ring_keras.elastic.pending_sums import PendingSums
from ring_keras.elastic.state import HostsUpdatedInterrupt
from ring_keras.lifecycle.elastic_launcher import is_late
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.ops.shards import refuse_shards
from ring_keras.optimizers.common_variables import (
    common_state,
    common_variables,
    own_accumulators,
)
from ring_keras.optimizers.divided_anew import KeptParts
from ring_keras.optimizers.meeting_hook import MeetingHook
from ring_keras.optimizers.optimizer_hook import OptimizerHook

__all__ = ["KerasState", "TensorFlowState"]

# A `tf.Variable` or a `keras.Variable`.
_Variable = Any


class TensorFlowState(ObjectState):
    """Holds variables, and plain values as attributes.

    Examples:
        >>> weight = tf.Variable(1.0)
        >>> state = ring.elastic.TensorFlowState([weight], step=0)
        >>> _ = weight.assign(2.0)
        >>> state.restore()
        >>> weight.numpy()
        np.float32(1.0)

    Args:
        variables: Variables to keep, restore, and send to other ranks. The same on
            every rank, in the same order.
        **values: See `ObjectState`.
    """

    def __init__(self, variables: Sequence[_Variable], **values: Any) -> None:
        super().__init__(**values)
        self._variables = list(variables)
        refuse_shards(self._variables, f"ring_keras.elastic.{type(self).__name__}")
        self._saved_variables: list[Any] = []
        self.save()

    def save(self) -> None:
        """Keeps a copy of variables and values in memory."""
        # All or nothing: an interrupt must not leave half of another step.
        kept = [*self._variables, *self._own_variables()]
        saved = [tf.convert_to_tensor(v).numpy() for v in kept]
        super().save()
        self._saved_variables = saved

    def restore(self) -> None:
        """Returns to the last copy."""
        super().restore()
        kept = [*self._variables, *self._own_variables()]
        for variable, value in zip(kept, self._saved_variables, strict=True):
            variable.assign(value)
        internals.finalize_layers(self._variables)

    def _own_variables(self) -> list[_Variable]:
        """What each rank has its own of, which is kept and restored as well."""
        return []

    def take_from(self, source: int) -> None:
        """Takes variables and values of that rank; a collective."""
        broadcast_variables(self._variables, source, name="elastic/variables")
        super().take_from(source)


class KerasState(TensorFlowState):
    """Holds a model's and its optimizers' variables, and plain values as attributes.

    Examples:
        >>> model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        >>> state = ring.elastic.KerasState(model, epoch=0)
        >>> state.commit()

    Args:
        model: A model that is built.
        optimizer: The optimizer that trains it. Defaults to the compiled one. Other
            optimizers in the model's attributes are part of the state, too.
        **values: See `ObjectState`.

    Raises:
        ValueError: If the model, or an optimizer that it keeps, is not built: it has no
            variables yet.
    """

    def __init__(self, model: Any, optimizer: Any = None, **values: Any) -> None:
        if not model.built:
            raise ValueError(
                f"{type(self).__name__} needs a model that is built. Begin the model "
                "with keras.Input, or call model.build(input_shape) before."
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        # A rank that joins has not trained, and its optimizer no variables yet.
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        self._optimizers = internals.optimizers_of(model)
        if self.optimizer is not None and self.optimizer not in self._optimizers:
            self._optimizers.append(self.optimizer)
        for one in internals.innermost(self._optimizers):
            hook = OptimizerHook.of(one)
            if hook is not None and hook.options.keeps_local:
                raise ValueError(
                    "[RK620] "
                    f"ring_keras.elastic.{type(self).__name__} gives all ranks the "
                    f"same variables, and optimizer '{one.name}' has local_layers."
                )
        for one in self._optimizers:
            if not one.built:
                raise ValueError(
                    f"{type(self).__name__} needs optimizers that are built, and "
                    f"'{one.name}' is not. Call its build(variables) before."
                )
        self._parts = KeptParts(self._optimizers)
        self._sums = PendingSums(self._optimizers)
        self._is_new = is_late()
        self._has_begun = False
        super().__init__(self._common_variables(), **values)
        self._has_begun = True

    def save(self) -> None:
        """Keeps a copy of variables and values in memory.

        With `shard_state=True` it is a collective: ranks keep each other's parts.
        """
        if self._has_begun:
            self._parts.commit()
        super().save()
        self._sums.save()

    def restore(self) -> None:
        """Returns to the last copy."""
        super().restore()
        self._sums.restore()

    def sync(self) -> None:
        """Gives every rank the state of the rank with the most commits; a collective.

        See `State.sync`.
        """
        super().sync()
        self._is_new = False

    def check_host_updates(self) -> None:
        """Lets new ranks join; a collective.

        Raises:
            HostsUpdatedInterrupt: On every rank, if others wait to join.
            PeerLostError: If a rank died or left.
        """
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            if self._parts:  # What the others are given is what is kept.
                self.save()
            raise

    def on_reset(self) -> None:
        """The ranks have changed, and this one has joined anew."""
        self._follow_ranks()
        super().on_reset()

    def _follow_ranks(self) -> None:
        """When variables are as they were kept; else nothing is to be kept of them."""
        if self._parts.follow_ranks():
            self._variables = self._common_variables()
            super().save()

    def _must_sync(self) -> bool:
        """With `shard_state=True`: parts are divided anew there."""
        return bool(self._parts)

    def _progress(self) -> list[int]:
        return [*super()._progress(), self._parts.number]

    def _common_variables(self) -> list[Any]:
        common = common_variables(self.model)
        common += common_state(self._optimizers, self.model.weights)
        return list({internals.variable_key(one): one for one in common}.values())

    def _own_variables(self) -> list[Any]:
        """What this rank has added up for an update, and owes to meetings to come.

        And its part of what the ranks divide.
        """
        return [
            *self._parts.own_variables(),
            *own_accumulators(self._optimizers),
            *(
                residual
                for one in self._optimizers
                if isinstance(OptimizerHook.of(one), MeetingHook)
                for residual in one.residuals
            ),
        ]

    def take_from(self, source: int) -> None:
        """Takes variables and values of that rank; a collective.

        Gradients that are accumulated for an update are each rank's own: a rank keeps
        them if they are of the same update, and of the same passes where the mean is
        taken; else it begins with none, and the mean is that of the others'.
        """
        self._follow_ranks()
        sums = self._sums.gather(is_new=self._is_new)
        super().take_from(source)
        self._parts.divide()
        self._parts.require_one_state()
        self._sums.go_on(sums, source)
