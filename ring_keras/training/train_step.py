"""A model's `train_step`, aware of the other ranks."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.job.topology import size
from ring_keras.layers.global_moments import moments_of
from ring_keras.ops.step import collectives_refused
from ring_keras.optimizers.meeting_hook import meeting_hooks, meeting_optimizers
from ring_keras.optimizers.step_scope import StepScope, StepWeight, enter_step
from ring_keras.states.own_state import own_state
from ring_keras.training import uneven_batches
from ring_keras.training.batch_losses import (
    warn_of_added_losses,
    warn_of_batch_losses,
    warn_of_other_weights,
    warn_of_own_lengths,
    warn_of_own_sums,
)
from ring_keras.training.distributed_models import hooks_of, process_set_of
from ring_keras.training.lone_step import end_lone_step
from ring_keras.training.own_examples import OwnExamples
from ring_keras.training.own_pace import takes_own_pace
from ring_keras.training.summed_loss_scaling import (
    gradients_multiplied,
    gradients_of_those_apart,
)
from ring_keras.training.unreduced_updates import unreduced_updates_refused
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["DistributedTrainStep", "failures_noted", "is_for_xla"]


@dataclasses.dataclass(frozen=True)
class _Traced:
    """What a trace has taken for granted.

    Attributes:
        generation: Of the job.
        weighted_by_row: See `uneven_batches`, like the next.
        of_unknown_length: Whether the batch was.
        looks_at_rows: Whether the step finds padding and empty batches.
    """

    generation: int
    weighted_by_row: bool
    of_unknown_length: bool
    looks_at_rows: bool

    @classmethod
    def of(cls, data: Any) -> "_Traced":
        """Of a step that is traced now, for batches like this one."""
        return cls(
            current_job().generation,
            uneven_batches.is_weighted_by_row(data),
            uneven_batches.is_of_unknown_length(data),
            uneven_batches.may_have_padding(data) or uneven_batches.may_be_empty(data),
        )

    def outdated(self) -> bool:
        """Whether it is of another membership, or asks of no uneven batches."""
        if self.generation != current_job().generation:
            return True
        looks = (uneven_batches.padding_was_made() and self.weighted_by_row) or (
            uneven_batches.empty_batches_were_made() and self.of_unknown_length
        )
        return looks and not self.looks_at_rows


class DistributedTrainStep:
    """Replaces `train_step` on one model instance.

    It weights the ranks by their number of examples, so that an uneven last
    batch averages to what one process would compute, and refuses a step some of
    whose gradients went to no other rank. Where a loss is divided by the sum of its
    sample weights, that sum takes the place of the number of examples; where it is
    divided by nothing, its gradient is scaled so that the average is the sum.

    Args:
        model: A compiled model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._train_step = model.train_step
        # TensorFlow keeps them all, for batches of other kinds.
        self._traces: set[_Traced] = set()
        self._moments: list[Any] = []
        self.prologues: list[Callable[[], None]] = []
        """Run, in graph mode traced, at the beginning of every step."""
        self.prologues_of_fits: list[tuple[object, Callable[[], None]]] = []
        """The same, each with the one `fit` whose steps it is for."""
        self.own_examples = OwnExamples()
        """Whether this rank had some in the last step."""
        self.failed_at: int | None = None
        """The model's number of steps after one that failed, of which a part is done.

        TensorFlow counts a step, for instance, whose batch could not be read.
        """

    @staticmethod
    def of(model: keras.Model) -> "DistributedTrainStep | None":
        """The one installed in this very model."""
        step = internals.replacement(model, internals.TRAIN_STEP)
        return step if isinstance(step, DistributedTrainStep) else None

    def install(self) -> None:
        """Puts it into the model. The train function must be made anew."""
        internals.replace(self._model, internals.TRAIN_STEP, self)

    def note_failure(self) -> None:
        """A step has not come to its end."""
        self.failed_at = internals.steps_done_of(self._model)

    def drop_other_fits(self, fit: object) -> bool:
        """Forgets the prologues of all `fit`s but this one, which have failed.

        Returns:
            Whether there were any, so that the step must be traced again.
        """
        before = self.prologues_of_fits
        self.prologues_of_fits = [pair for pair in before if pair[0] is fit]
        return len(self.prologues_of_fits) < len(before)

    def outdated(self) -> bool:
        """Whether a trace is of another membership, or asks of no uneven batches.

        Or of layers that did not take the moments of all ranks yet.
        """
        if self._traces and self._moments != moments_of(self._model):
            return True
        return any(traced.outdated() for traced in self._traces)

    def forget_traces(self) -> None:
        """The train function is made anew."""
        self._traces.clear()

    def compiled(self) -> bool:
        """Whether XLA compiles it."""
        return bool(self._model.jit_compile and not self._model.run_eagerly)

    def process_set(self) -> ProcessSet:
        """The ranks that train this model together."""
        return process_set_of(self._model)

    def __call__(self, data: Any) -> Any:
        """Runs, or traces, one step on a batch."""
        # Or TensorFlow would run them at the end of the data too.
        with tf.control_dependencies(_tensors(data)):
            for prologue in [*self.prologues, *(p for _, p in self.prologues_of_fits)]:
                prologue()
        traced = _Traced.of(data)
        self._traces.add(traced)
        self._moments = moments_of(self._model)
        process_set = self.process_set()
        if not has_peers(process_set):
            with self._counted_alone(data, process_set):
                result = self._own_step(data)
            end_lone_step(data, result, compiled=self.compiled())
            return result
        if traced.looks_at_rows:
            return self._run_uneven(data, process_set)
        return self._run(data, self._amount(data), process_set)

    def _counted_alone(
        self, data: Any, process_set: ProcessSet
    ) -> contextlib.AbstractContextManager[None]:
        """Has a step count as it will where others come before the next meeting.

        And keeps its layers from ranks of the job that train other models.
        """
        amount = self._amount(data) if meeting_optimizers(self._model) else None
        if amount is None and not has_peers(global_process_set):
            return contextlib.nullcontext()
        weight = None if amount is None else StepWeight(amount, process_set)
        return enter_step(StepScope(process_set, weight, compiled=self.compiled()))

    def _run_uneven(self, data: Any, process_set: ProcessSet) -> Any:
        """A step whose batch may have padding rows, or no rows at all."""
        may_have_padding = uneven_batches.may_have_padding(data)
        if may_have_padding and not self.compiled():  # Else it is taken out before.
            data = uneven_batches.without_padding(data)
        count = uneven_batches.example_count(data)
        if count is None:
            return self._run(data, self._amount(data), process_set)
        self.own_examples.note(count)
        amount = self._amount(data)
        if amount is None:
            tf.debugging.assert_greater(
                count,
                tf.constant(0, tf.float64),
                f"A rank has run out of data, and the gradients of model "
                f"'{self._model.name}' are not averaged, so that rank cannot be left "
                "out. Use op=ring_keras.Average, or data in equal parts: "
                "ring_keras.data.shard(remainder='drop').",
            )
        with uneven_batches.undone_if(
            count == 0, own_state(self._model), self._model.metrics
        ):
            return self._run(
                uneven_batches.at_least_one_row(data),
                amount,
                process_set,
                present=count > 0,
            )

    def _run(
        self,
        data: Any,
        amount: tf.Tensor | None,
        process_set: ProcessSet,
        present: tf.Tensor | None = None,
    ) -> Any:
        scope = StepScope(
            process_set,
            None if amount is None else StepWeight(amount, process_set),
            present,
            compiled=self.compiled(),
        )
        with (
            enter_step(scope),
            unreduced_updates_refused(self._model, scope),
            self._summed_losses_prepared(scope),
        ):
            result = self._own_step(data)
        if (
            amount is not None
            and _sample_weights(data)
            and internals.loss_divides_by_sample_weight(self._model)
            and internals.adds_losses(self._model, self._model.losses)
        ):
            warn_of_added_losses(self._model)
        if (
            not scope.communicated
            and not scope.accumulates
            and self._model.trainable_variables
        ):
            raise RingKerasError(
                "[RK604] "
                f"A training step of model '{self._model.name}' on "
                f"{process_set.size()} ranks reduced no gradients: every rank would "
                "train alone. Compile with ring_keras.DistributedOptimizer("
                "optimizer), or use ring_keras.DistributedGradientTape in a custom "
                "train_step that applies gradients itself."
            )
        return result

    def _own_step(self, data: Any) -> Any:
        """The model's, in which all ranks must communicate alike."""
        with collectives_refused(takes_own_pace(self._model)):
            return self._train_step(data)

    def _summed_losses_prepared(
        self, scope: StepScope
    ) -> contextlib.AbstractContextManager[None]:
        """Sees to losses that add up their batch instead of taking the mean."""
        losses = internals.summed_losses(self._model)
        if hooks := meeting_hooks(self._model):
            return gradients_of_those_apart(self._model, losses, hooks, scope)
        warn_of_batch_losses(self._model)
        if not losses:
            return contextlib.nullcontext()
        if not self._averages():
            if ReduceOp.SUM not in self._ops():
                return contextlib.nullcontext()
            scope.summed_losses_for = ReduceOp.SUM, scope.process_set.ranks
            return self._nothing_else_added()
        warn_of_own_sums(self._model)
        scope.summed_losses_for = ReduceOp.AVERAGE, scope.process_set.ranks
        factor: tf.Tensor | float = scope.process_set.size()
        if scope.weight is not None:
            factor = tf.math.divide_no_nan(scope.weight.total(), scope.weight.amount)
        return gradients_multiplied(losses, factor)

    @contextlib.contextmanager
    def _nothing_else_added(self) -> Iterator[None]:
        yield
        if internals.has_other_losses(self._model):
            raise RingKerasError(
                "[RK603] "
                f"A loss of model '{self._model.name}' adds up its batch "
                "(reduction='sum' or None), and others, regularizers or add_loss() do "
                "not: with op=ring_keras.Sum on n ranks, the gradients of the latter "
                "would be n times too large. Leave out op: with the default all of "
                "them train as in one process on the global batch."
            )

    def _averages(self) -> bool:
        """Whether gradients are averaged, as they are if nothing is said."""
        ops = self._ops()
        return not ops or ReduceOp.AVERAGE in ops

    def _ops(self) -> set[ReduceOp]:
        return {hook.op for hook in hooks_of(self._model)}

    def _amount(self, data: Any) -> tf.Tensor | None:
        """What this rank's loss has been divided by, up to a common factor.

        None where nothing is averaged, or batches have no size.
        """
        if not self._averages():
            return None
        if not internals.loss_divides_by_sample_weight(self._model):
            warn_of_own_lengths(self._model, data)
            return uneven_batches.example_count(data)
        if _sample_weights(data):
            divisors = internals.loss_divisors(self._model, data[2])
            losses = internals.compiled_losses(self._model)
            if divisors == [None]:
                return uneven_batches.example_count(data)
            if len(divisors) == len(losses) == 1:
                return _total(divisors[0])
            warn_of_other_weights(
                self._model,
                "several losses or sample weights, or outputs without any",
                "number of examples",
            )
        return uneven_batches.example_count(data)


def _tensors(data: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(data, expand_composites=True)
    return [leaf for leaf in leaves if leaf is not None]


def _total(weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(weights, tf.float64) + internals.NO_WEIGHT)


def _sample_weights(data: Any) -> list[tf.Tensor]:
    if not isinstance(data, tuple) or len(data) != 3:
        return []
    return [weight for weight in tf.nest.flatten(data[2]) if weight is not None]


@contextlib.contextmanager
def failures_noted(model: keras.Model) -> Iterator[None]:
    """Notes what fails in it as a step of the model's, but for the end of the data."""
    try:
        yield
    except (StopIteration, tf.errors.OutOfRangeError):
        raise
    except BaseException:
        step = DistributedTrainStep.of(model)
        if step is not None:
            step.note_failure()
        raise


def is_for_xla(model: keras.Model) -> bool:
    """Whether XLA compiles the model's steps, which ranks take together."""
    step = DistributedTrainStep.of(model)
    return size() > 1 and step is not None and step.compiled()
