"""Reduces the gradients of a step: starts first, waits last."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.ops.adasum import adasum
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.arguments import Factor
from ring_keras.ops.grouped_allreduce import (
    PendingAllreduce,
    allreduce_start,
    allreduce_wait,
    grouped_allreduce,
)
from ring_keras.optimizers.agreed_plans import AgreedPlans, source_name
from ring_keras.optimizers.buckets import Bucket, BucketPlan, bucket_name
from ring_keras.optimizers.gradient_values import (
    Gradient,
    as_tensors,
    dense,
    rounded,
    scaled,
    with_shape_of,
    zero_unless,
)
from ring_keras.optimizers.low_rank import LowRank, LowRankStep
from ring_keras.optimizers.plan_agreement import named_mismatch
from ring_keras.optimizers.reduction_check import ReductionCheck
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.scattered_bucket import Division, ScatteredBucket
from ring_keras.optimizers.step_scope import (
    StepWeight,
    current_step,
    reduction_step,
)
from ring_keras.optimizers.summed_losses import refuse_summed_losses
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["GradientReducer"]


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Args:
        options: What to do with them. On a rank outside of its process set
            `reduce` leaves gradients on their rank.
        sums_duplicates: Says whether whoever gets the gradients does with slices of
            the same index what it would do with their sum. Only then a sparse
            gradient is made dense because that costs less. Asked in each trace, as
            the answer may change.
        all_variables: Returns those of which some may have gradients, in the same
            order on every rank, where `reduce` gets only those that have; none if
            there is no such list.
    """

    def __init__(
        self,
        options: ReductionOptions,
        *,
        sums_duplicates: Callable[[], bool] = lambda: False,
        all_variables: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._options = options
        self._plans = AgreedPlans(
            options, sums_duplicates=sums_duplicates, all_variables=all_variables
        )
        self._low_rank = None if options.low_rank is None else LowRank(options)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self._options.process_set

    @property
    def latest_plan(self) -> BucketPlan | None:
        """How the gradients of the last step travel that was traced."""
        latest = self._plans.latest
        return None if latest is None else latest.buckets

    @property
    def active(self) -> bool:
        """Whether there is another rank to reduce with."""
        return has_peers(self.process_set)

    def share_owed(self, other: "GradientReducer") -> None:
        """Keeps what a rank owes with another one's, of the same options."""
        self._low_rank = other._low_rank

    @property
    def has_owed(self) -> bool:
        """Whether a rank owes what its gradients had in addition to their results."""
        return self._low_rank is not None

    def forget_owed(self) -> None:
        """Owes nothing any more."""
        if self._low_rank is not None:
            self._low_rank.forget()

    def step_weight(self) -> StepWeight | None:
        """How much this rank counts in the current step; None for all alike.

        Also among others than the step's ranks, as where `weighted_step` was not told:
        each counts by its examples in any average.
        """
        step = current_step()
        if step is None or self._options.op is not ReduceOp.AVERAGE:
            return None
        if step.weight is None or self.has_ranks_of_step():
            return step.weight
        return StepWeight(step.weight.amount, self.process_set)

    def has_ranks_of_step(self) -> bool:
        """Whether those that reduce are those that take the current step together."""
        step = current_step()
        return step is not None and step.process_set is self.process_set

    def of_pass(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[Gradient]:
        """Gradients of one pass, as they are added up before ranks reduce the sums.

        Each pass has a weight of its own, and each may be one without examples.
        """
        gradients = self.of_examples(gradients, sources)
        if self.active and self._options.keeps_local:
            gradients = [
                rounded(gradient) if self._options.is_local(source) else gradient
                for gradient, source in zip(gradients, sources, strict=True)
            ]
        weight = self.step_weight()
        if weight is None:
            return gradients
        as_they_are = [
            self._options.is_local(source) and not self._options.scale_local_gradients
            for source in sources
        ]
        share = weight.share()
        return [
            gradient if stays else scaled(gradient, share)
            for gradient, stays in zip(gradients, as_they_are, strict=True)
        ]

    def largest(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[Gradient]:
        """Takes the largest of all ranks where a "gradient" is the new value.

        In float8 training Keras assigns such gradients to their variables, the
        scales of casts and the histories of largest absolute values from which
        those follow: the largest of the global batch is that of all ranks' parts.

        Args:
            gradients: In the order of their variables.
            sources: Their variables.

        Returns:
            The gradients, those of other variables untouched.
        """
        gradients = list(gradients)
        if not self.active:
            return gradients
        indices = self._overwriting(gradients, sources)
        if indices:
            largest = grouped_allreduce(
                [gradients[index] for index in indices],
                ReduceOp.MAX,
                name="gradients/overwriting",
                process_set=self.process_set,
            )
            for index, gradient in zip(indices, largest, strict=True):
                gradients[index] = gradient
        return gradients

    def reduce(
        self,
        gradients: Sequence[Gradient],
        sources: Sequence[Any],
        weight: StepWeight | None = None,
        factor: float = 1.0,
        *,
        loss_scale: Factor = 1.0,
        are_sums: bool = False,
        division: Division | None = None,
    ) -> list[Any]:
        """Emits every start, in the order of the plan, and then every wait.

        A start depends on the gradients of its bucket alone. TensorFlow runs
        stateful ops of a function in the order in which they were traced, so
        no start may be traced after a wait.

        Args:
            gradients: In the order of their variables. None stays None.
            sources: Their variables, or the variables' names.
            weight: How much this rank's gradients count in an average; None if
                all ranks' count alike.
            factor: Multiplies every result.
            loss_scale: What the gradients have been multiplied by already.
            are_sums: Whether they are sums of passes, each of which `of_pass` has
                seen. Then it does not matter whether the last one had examples.
            division: If it is enough that a rank has the gradients of what it updates:
                who updates what.

        Returns:
            The reduced gradients, the same on every rank but for local ones. With
            `division` an `OwnPart` in place of some.

        Raises:
            RankMismatchError: On every rank, if two have different gradients.
            CorruptDataError: On every rank, if the result is wrong, and
                RING_KERAS_CHECK_REDUCTIONS says to look.
        """
        if self.active:
            refuse_summed_losses(self._options.op, self.process_set.ranks)
            if not are_sums:
                gradients = self.of_examples(gradients, sources)
        return self.combine(gradients, sources, weight, factor, loss_scale, division)

    def agree(self, sources: Sequence[Any]) -> int:
        """Has the ranks agree on how a value for each variable travels; collective.

        Once for the same variables: `combine` asks nobody then.

        Returns:
            The number of their plan.
        """
        values = [tf.convert_to_tensor(one) for one in sources]
        _, agreed, _ = self._plans.plan(values, sources)
        return agreed.agreement.number

    def combine(
        self,
        gradients: Sequence[Gradient],
        sources: Sequence[Any],
        weight: StepWeight | None = None,
        factor: float = 1.0,
        loss_scale: Factor = 1.0,
        division: Division | None = None,
    ) -> list[Any]:
        """Does what `reduce` does, also with what is no gradient of a loss."""
        if not self.active:
            return [scaled(gradient, factor) for gradient in gradients]
        gradients = [
            with_shape_of(source, as_tensors(gradient))
            for gradient, source in zip(gradients, sources, strict=True)
        ]
        local = [
            index
            for index, source in enumerate(sources)
            if gradients[index] is not None and self._options.is_local(source)
        ]
        apart = {*local, *self._overwriting(gradients, sources)}
        shared, contexts = self._compress(
            [None if index in apart else g for index, g in enumerate(gradients)]
        )
        share: Factor = 1.0
        low_rank: LowRankStep | None = None
        if self._low_rank is not None:
            if weight is not None:
                # What is owed must count alike on all ranks: scaled now, not by the
                # collectives.
                share, weight = weight.share(), None
                shared = [scaled(gradient, share) for gradient in shared]
            low_rank = self._low_rank.begin(shared, sources, loss_scale)
            shared = low_rank.shared
        shared, agreed, own_plan = self._plans.plan(shared, sources)
        plan = agreed.buckets
        with (
            named_mismatch(own_plan, self.process_set),
            reduction_step(self.process_set, agreed.agreement.number),
        ):
            check = ReductionCheck.if_wanted(
                self._options, shared, plan, weight, factor
            )
            empty = None if plan.buckets else self._start_empty()
            started = [
                self._start(
                    bucket,
                    shared,
                    bucket_name(number),
                    weight,
                    factor,
                    wait_follows=number + 1 == len(plan.buckets),
                    scattered=None
                    if division is None or check is not None
                    else ScatteredBucket.of(
                        bucket, sources, division, self.process_set
                    ),
                )
                for number, bucket in enumerate(plan.buckets)
            ]
            reduced = self.largest(gradients, sources)
            of_sparse: Factor = 1.0
            if weight is not None and (
                _are_sparse(shared) or (local and self._options.scale_local_gradients)
            ):
                share = of_sparse = weight.share()
            self._gather_sparse(shared, reduced, of_sparse, factor)
            for bucket, pending in zip(plan.buckets, started, strict=True):
                if isinstance(pending, ScatteredBucket):
                    for index, part in pending.wait().items():
                        reduced[index] = part
                    continue
                for index, tensor in zip(bucket.indices, _wait(pending), strict=True):
                    reduced[index] = tensor
            if empty is not None:
                _wait(empty)
            if check is not None:
                exchanged = {
                    index: source_name(source)
                    for index, source in enumerate(sources)
                    if reduced[index] is not None and index not in local
                }
                reduced = check.checked(reduced, exchanged)
            if low_rank is not None:
                low_rank.finish(reduced, factor)
        for index, context in contexts.items():
            reduced[index] = self._options.compressor.decompress(
                reduced[index], context
            )
        if self._options.scale_local_gradients:
            factor = share * (factor / self.process_set.size())
        for index in local:
            own = rounded(gradients[index])
            reduced[index] = rounded(scaled(own, factor))
        self._note([s for s, g in zip(sources, reduced, strict=True) if g is not None])
        return reduced

    def _compress(
        self, gradients: list[Gradient]
    ) -> tuple[list[Gradient], dict[int, Any]]:
        """A user's own compression of those that are dense, and what undoes it."""
        compressor = self._options.compressor
        contexts: dict[int, Any] = {}
        if compressor is None:
            return gradients, contexts
        if self._options.sparse_as_dense:
            gradients = [dense(gradient) for gradient in gradients]
        for index, gradient in enumerate(gradients):
            if gradient is not None and not isinstance(gradient, tf.IndexedSlices):
                gradients[index], contexts[index] = compressor.compress(gradient)
        return gradients, contexts

    def _gather_sparse(
        self,
        shared: Sequence[Gradient],
        reduced: list[Gradient],
        share: Factor,
        factor: float,
    ) -> None:
        """Puts the slices of all ranks into `reduced`."""
        op = self._options.op
        # Nobody is in `join()` in a step of Keras's, which may weight the ranks.
        if op is ReduceOp.AVERAGE and current_step() is not None:
            op, factor = ReduceOp.SUM, factor / self.process_set.size()
        for index, gradient in enumerate(shared):
            if isinstance(gradient, tf.IndexedSlices):
                gathered = allreduce(
                    gradient,
                    op,
                    name=f"gradients/sparse{index}",
                    prescale_factor=share,
                    postscale_factor=factor,
                    process_set=self.process_set,
                )
                # An optimizer may go on with some of its rows only.
                reduced[index] = rounded(gathered)

    def of_examples(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[Gradient]:
        """Zeros where a row of zeros stands for no examples: a weight of 0 keeps NaN.

        A model may make NaN of it, such as the mean of a row that is all masked.
        """
        step = current_step()
        if step is None or step.present is None:
            return list(gradients)
        present = step.present
        return [
            gradient
            if internals.overwrites_with_gradient(source)
            else zero_unless(present, as_tensors(gradient))
            for gradient, source in zip(gradients, sources, strict=True)
        ]

    def _overwriting(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[int]:
        return [
            index
            for index, source in enumerate(sources)
            if gradients[index] is not None
            and internals.overwrites_with_gradient(source)
            and not self._options.is_local(source)
        ]

    def _note(self, sources: Sequence[Any]) -> None:
        step = current_step()
        if step is not None and sources:
            step.note_reduced(sources)

    def _start_empty(self) -> PendingAllreduce:
        """In place of the first bucket, where a plan has none.

        So that this rank meets those whose plan has one.
        """
        return allreduce_start(
            [tf.zeros([1])],
            ReduceOp.SUM,
            name=bucket_name(0),
            process_set=self.process_set,
        )

    def _start(
        self,
        bucket: Bucket,
        gradients: Sequence[Gradient],
        name: str,
        weight: StepWeight | None,
        factor: float,
        *,
        wait_follows: bool,
        scattered: ScatteredBucket | None,
    ) -> PendingAllreduce | ScatteredBucket | list[tf.Tensor]:
        """What is on its way; or the result, of an op that has no two halves."""
        options = self._options
        tensors = [gradients[index] for index in bucket.indices]
        if options.op is ReduceOp.ADASUM:
            return adasum(
                tensors,
                name=name,
                postscale_factor=factor,
                compression=options.compression,
                process_set=self.process_set,
            )
        arguments: dict[str, Any] = {
            "op": options.op,
            "name": name,
            "prescale_factor": 1.0 / options.gradient_predivide_factor,
            "postscale_factor": options.gradient_predivide_factor * factor,
            "weight": None if weight is None else weight.amount,
            "wait_follows": wait_follows,
        }
        if scattered is not None:
            scattered.start(gradients, **arguments)
            return scattered
        return allreduce_start(
            tensors,
            compression=options.compression,
            process_set=self.process_set,
            **arguments,
        )


def _are_sparse(gradients: Sequence[Gradient]) -> bool:
    """Whether any is."""
    return any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)


def _wait(pending: PendingAllreduce | list[tf.Tensor]) -> list[tf.Tensor]:
    if isinstance(pending, list):
        return pending
    return allreduce_wait(pending, blocks=True)
