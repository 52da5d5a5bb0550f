"""The variables of a `fit`: what ranks go back to, and give to each other."""

from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.elastic.pending_sums import PendingSums
from ring_keras.job.process_set import global_process_set
from ring_keras.ops.broadcast_variables import broadcast_variables
from ring_keras.optimizers import common_start
from ring_keras.optimizers.common_variables import common_variables
from ring_keras.optimizers.divided_anew import KeptParts
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.states.common_layers import agree_on_layers, described_layers
from ring_keras.values.encoding import encode

__all__ = ["Copy", "FitState"]

# Variables, and what they had.
Copy = tuple[list[Any], list[tf.Tensor]]


class FitState:
    """Copies of what a step changes, and of what is the same on all ranks.

    Metrics, states of recurrent layers, and gradients that are being added up are of
    the samples that a rank has seen: it keeps its own. So are, between two meetings,
    weights that ranks train apart. Of random generators it keeps the seed, and counts
    what was drawn as the others do.

    Args:
        model: A model that is built, with its optimizers.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._saved: list[tf.Tensor] = []
        self.parts = KeptParts(internals.optimizers_of(model))
        """What the ranks divide of the optimizers' state."""
        self.look()
        self._sums = PendingSums(internals.optimizers_of(model))

    def look(self) -> None:
        """Finds the variables; some exist after the first step only."""
        model = self._model
        self._accumulating = [
            (optimizer, passes)
            for optimizer in internals.innermost_optimizers(model)
            if (passes := getattr(optimizer, "gradient_accumulation_steps", None))
        ]
        self._seeds = internals.seed_states(model)
        self._common = common_variables(model)
        first = [*self._common, *self._seeds, *self.parts.own_variables()]
        self._first = len(first)
        every = [
            *first,
            *internals.recurrent_states(model),
            *internals.accumulators(internals.optimizers_of(model)),
            *(v for one in meeting_optimizers(model) for v in one.residuals),
            *model.metrics_variables,
        ]
        self._every = list({id(v): v for v in every}.values())
        # One call for all of them. The tensors share the variables' memory, until a
        # step writes there.
        variables = [internals.tensorflow_variable(v) for v in self._every]
        self._read = tf.function(
            lambda: [variable.read_value() for variable in variables], autograph=False
        )

    def is_between_updates(self) -> bool:
        """Whether no optimizer has gradients of earlier steps, yet to be applied."""
        return all(
            internals.steps_done(optimizer) % passes == 0
            for optimizer, passes in self._accumulating
        )

    def save(self) -> None:
        """Keeps a copy of everything."""
        self._saved = self._read()
        self._sums.save()

    def restore(self) -> None:
        """Goes back to what was kept last."""
        self.go_back_to(self.latest())
        self._sums.restore()

    def latest(self) -> Copy:
        """What was kept last."""
        return self._every, self._saved

    def go_back_to(self, copy: Copy) -> None:
        """The variables have what they had then."""
        for variable, value in zip(*copy, strict=True):
            variable.assign(value)

    def common_copy(self, source: int) -> Copy:
        """Of what that rank's variables have now, and so all; a collective."""
        broadcast_variables(self._common, source, name="elastic/fit/backup")
        return self._every, self._read()

    def restore_common(self) -> None:
        """The same of what this rank has in common with others, or for them."""
        every = self._every[: self._first]
        for variable, value in zip(every, self._saved, strict=False):
            variable.assign(value)

    def take_own_sums(self) -> None:
        """A callback has given each rank the sums that it had, or cleared all."""
        self._sums.begin_anew()

    def follow_ranks(self) -> bool:
        """Has optimizers that the ranks divide variables for those that there are.

        When all variables are as they were kept.

        Returns:
            Whether what is traced is of variables that are gone.
        """
        if not self.parts.follow_ranks():
            return False
        self.look()
        self.save()
        return True

    def take_from(self, source: int, *, is_new: bool) -> bool:
        """Takes the common state of that rank, and its part; a collective.

        Args:
            source: The rank.
            is_new: Whether this rank has come later than that one.

        Returns:
            Whether a layer of any rank computes with other constants now, so that what
            is traced must be traced again.
        """
        before = internals.constants(self._model)
        sums = self._sums.gather(is_new=is_new)
        broadcast_variables(self._common, source, name="elastic/fit/variables")
        self.parts.divide()
        self._sums.go_on(sums, source)
        # The next trace need not compare them.
        common_start.set_started(
            [*self._common, *self._model.weights], global_process_set
        )
        return agree_on_layers(
            self._model,
            lambda variable: False,
            "elastic/fit/layers",
            global_process_set,
            are_new=internals.constants(self._model) != before,
        )

    def stay_apart(self, *, is_new: bool) -> None:
        """After `take_from`: what ranks that train apart have for themselves.

        Args:
            is_new: Whether this rank comes later; else it has its own, as it was kept.
        """
        own = None
        if not is_new:
            keys = map(internals.variable_key, self._every)
            own = dict(zip(keys, self._saved, strict=True))
        for optimizer in meeting_optimizers(self._model):
            optimizer.go_on_with(own)

    def layers(self) -> list[str]:
        """What layers must have from the beginning: no variable gives it to them."""
        return [
            f"{what} of checksum {digest}"
            for _, what, digest in described_layers(self._model)
            if what != "constants"
        ]

    def described(self) -> list[str]:
        """The common variables' dtypes and shapes."""
        return [
            f"{tf.as_dtype(v.dtype).name} {list(v.shape)}" for v in self._common
        ] + [f"{len(self._seeds)} random generators"]

    def optimizers(self) -> list[str]:
        """Their configurations, without what is in variables."""
        return [
            *map(_described, internals.innermost_optimizers(self._model)),
            *(str(one.terms) for one in meeting_optimizers(self._model)),
        ]

    def drawn(self) -> list[int]:
        """What each random generator has drawn, to give to other ranks."""
        return [int(variable.numpy()[1]) for variable in self._seeds]

    def set_drawn(self, counts: list[int]) -> None:
        """Takes that of another rank."""
        for variable, count in zip(self._seeds, counts, strict=True):
            variable.assign([variable.numpy()[0], count])


def _described(optimizer: keras.optimizers.Optimizer) -> str:
    name = type(optimizer).__name__
    try:
        config = optimizer.get_config()
        config.pop("name", None)
        if internals.is_keras_variable(optimizer.learning_rate):
            config.pop("learning_rate", None)
        encode(config)
    except (NotImplementedError, TypeError, ValueError):
        return name  # With a schedule of one's own, perhaps.
    return f"{name} {config}"
