"""The plans that the ranks have agreed on, made where there is none yet."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import generation
from ring_keras.ops.common_order import place_of
from ring_keras.optimizers.backward_order import backward_order, first_rank_order
from ring_keras.optimizers.buckets import (
    BucketPlan,
    GradientSpec,
    current_bytes,
    plan_buckets,
)
from ring_keras.optimizers.common_start import start_alike
from ring_keras.optimizers.gradient_values import Gradient, dense, with_rows
from ring_keras.optimizers.plan_agreement import Agreement, Places, agree_on_plan
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.sparse_choice import Choice, SparseGradient, choose_dense
from ring_keras.optimizers.step_scope import current_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["AgreedPlan", "AgreedPlans", "source_name"]

# Set on a TensorFlow variable: its number, which no other of this process gets. To
# keep the variable itself would keep its memory.
_NUMBER: Final = "_ring_keras_number"
_numbers = itertools.count()


@dataclass(frozen=True)
class AgreedPlan:
    """A plan, and on what the ranks have agreed.

    Attributes:
        buckets: The plan, with what the ranks have chosen to make dense.
        agreement: On the plan without that.
        rows: Of sparse gradients under XLA, by position: how many slices each rank
            brings, as XLA must know how many all have together.
    """

    buckets: BucketPlan
    agreement: Agreement
    rows: Mapping[int, int]


class AgreedPlans:
    """Plans one list of gradients after the other.

    Args:
        options: What the user has chosen.
        sums_duplicates: See `GradientReducer`.
        all_variables: See `GradientReducer`.
    """

    def __init__(
        self,
        options: ReductionOptions,
        *,
        sums_duplicates: Callable[[], bool],
        all_variables: Callable[[], Sequence[Any]],
    ) -> None:
        self._options = options
        self._sums_duplicates = sums_duplicates
        self._all_variables = all_variables
        self._generation = generation()
        # By the digest of what this rank would do by itself, by whose gradients they
        # are, as those of other variables, alike in all else, are another plan, and by
        # whether sparse ones may be made dense.
        self._agreed: dict[tuple[bytes, tuple[int | None, ...], bool], AgreedPlan] = {}
        self.latest: AgreedPlan | None = None
        """That of the last step that was traced."""

    def __len__(self) -> int:
        return len(self._agreed)

    def plan(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> tuple[list[Gradient], AgreedPlan, BucketPlan]:
        """The gradients as the plan says they travel; it; and the own one.

        The own plan is that of this rank before it has asked the others.

        Ranks meet a new plan together, when they trace the first step that has it.
        One may trace again on its own, for a last batch of another shape: that is
        the same plan, so it asks nobody.

        Args:
            gradients: In the order of their variables. None stays None.
            sources: Their variables, or the variables' names.
        """
        if self._generation != generation():
            self._generation = generation()
            self._agreed.clear()
            self.latest = None
        gradients = list(gradients)
        if self._must_be_dense():
            gradients = [dense(gradient) for gradient in gradients]
        specs = [_spec(g, s) for g, s in zip(gradients, sources, strict=True)]
        groups = self._groups(gradients, sources)
        own = self._bucket_plan(specs, groups)
        sums_duplicates = self._sums_duplicates() and any(
            isinstance(gradient, tf.IndexedSlices) for gradient in gradients
        )
        key = own.digest(), tuple(map(_variable_number, sources)), sums_duplicates
        if key not in self._agreed:
            agreement = agree_on_plan(
                own,
                self._options.process_set,
                self._places(gradients, sources),
                needs_all=self._options.needs_all,
            )
            order = None
            if agreement.of_all:
                order = first_rank_order(
                    backward_order(gradients), self._options.process_set
                )
            specs, rows = self._with_choices(
                specs, gradients, agreement, sums_duplicates=sums_duplicates
            )
            buckets = self._bucket_plan(specs, groups, order)
            self._agreed[key] = AgreedPlan(buckets, agreement, rows)
        self.latest = plan = self._agreed[key]
        start_alike(
            sources, self._options.is_local, plan.agreement, self._options.process_set
        )
        for index in (i for bucket in plan.buckets.buckets for i in bucket.indices):
            gradients[index] = dense(gradients[index])
        for index, rows_of_each in plan.rows.items():
            gradients[index] = with_rows(gradients[index], rows_of_each)
        return gradients, plan, own

    def _must_be_dense(self) -> bool:
        return (
            bool(self._options.sparse_as_dense) or self._options.op is ReduceOp.ADASUM
        )

    def _with_choices(
        self,
        specs: list[GradientSpec],
        gradients: Sequence[Gradient],
        agreement: Agreement,
        *,
        sums_duplicates: bool,
    ) -> tuple[list[GradientSpec], dict[int, int]]:
        """What is planned once the ranks have chosen what to make dense; the rows.

        XLA must know how many slices all ranks have together, so what ranks do not
        know when they trace is made dense.
        """
        specs, rows = list(specs), dict[int, int]()
        compiled = _is_compiled()
        sparse = {
            index: SparseGradient.of(gradient)
            for index, gradient in enumerate(gradients)
            if isinstance(gradient, tf.IndexedSlices)
        }
        may_choose = sums_duplicates and self._options.sparse_as_dense is None
        if not sparse or not (compiled or (may_choose and agreement.of_all)):
            return specs, rows
        if agreement.of_all:
            choices = choose_dense(list(sparse.values()), self._options.process_set)
        else:
            choices = [Choice(None, costs_less=False)] * len(sparse)
        changed = []
        for index, choice in zip(sparse, choices, strict=True):
            is_unknown = compiled and choice.rows is None
            if is_unknown or (may_choose and choice.costs_less):
                specs[index] = _spec(dense(gradients[index]), specs[index].name)
            elif compiled and choice.rows is not None:
                rows[index] = choice.rows
            if is_unknown and not sums_duplicates:
                changed.append(specs[index].name)
        if changed and self._options.process_set.rank() == 0:
            _warn_of_dense(changed)
        return specs, rows

    def _places(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[Places]:
        """Where in lists that ranks have in common those are that have gradients."""
        of_all = {
            internals.variable_key(variable): place
            for place, variable in enumerate(self._all_variables())
        }
        return [
            (None, None)
            if gradient is None or isinstance(source, str)
            else (
                of_all.get(internals.variable_key(source)),
                place_of(source, self._options.process_set),
            )
            for gradient, source in zip(gradients, sources, strict=True)
        ]

    def _bucket_plan(
        self,
        specs: Sequence[GradientSpec],
        groups: list[list[int]],
        order: Sequence[int] | None = None,
    ) -> BucketPlan:
        size_bytes = self._options.bucket_size_bytes
        if size_bytes is None:
            size_bytes = current_bytes()
        return plan_buckets(specs, size_bytes, groups=groups, order=order)

    def _groups(
        self, gradients: Sequence[Gradient], sources: Sequence[Any]
    ) -> list[list[int]]:
        """Positions of the gradients that users put together."""
        count = self._options.num_groups
        if count:
            present = [i for i, g in enumerate(gradients) if g is not None]
            base, extra = divmod(len(present), count)
            ends = [base * n + min(n, extra) for n in range(count + 1)]
            return [present[a:b] for a, b in itertools.pairwise(ends)]
        if not self._options.groups:
            return []
        positions = {
            internals.variable_key(source): index
            for index, source in enumerate(sources)
            if not isinstance(source, str)
        }
        return [
            [positions[key] for key in group if key in positions]
            for group in self._options.groups
        ]


def source_name(source: Any) -> str:
    """What messages call the variable of a gradient."""
    if isinstance(source, str):
        return source
    path = getattr(source, "path", None)
    # Eager tensors have no name.
    if path is None and (isinstance(source, tf.Variable) or not tf.is_tensor(source)):
        path = getattr(source, "name", None)
    return str(path or "source")


def _is_compiled() -> bool:
    """Whether XLA compiles the step of a model."""
    step = current_step()
    return step is not None and step.compiled


def _warn_of_dense(names: Sequence[str]) -> None:
    logging.warning(
        "ring_keras: [RK606] "
        "the sparse gradient of '%s'%s is made dense, because XLA must know how many "
        "slices it has, and the number of examples varies. An optimizer that squares "
        "or clips gradients, as Adam does, then takes other updates than in one "
        "process. Make batches of one size, by batch(..., drop_remainder=True), or "
        "compile() with jit_compile=False. If you want dense gradients, pass "
        "sparse_as_dense=True.",
        names[0],
        f" and of {len(names) - 1} more" if len(names) > 1 else "",
    )


def _variable_number(source: Any) -> int | None:
    """None for tensors, which are new in every step, and for names."""
    source = internals.tensorflow_variable(source)
    if not isinstance(source, tf.Variable):
        return None
    attributes = vars(source)
    if _NUMBER not in attributes:
        attributes.setdefault(_NUMBER, next(_numbers))
    number: int = attributes[_NUMBER]
    return number


def _spec(gradient: Gradient, source: Any) -> GradientSpec:
    name = source_name(source)
    if gradient is None:
        return GradientSpec(name, None, 0, None)
    dtype = gradient.dtype
    if isinstance(gradient, tf.IndexedSlices):
        return GradientSpec(name, dtype.name, dtype.size, None, _is_compiled())
    if not gradient.shape.is_fully_defined():
        raise ValueError(
            f"The gradient of '{name}' must have a static shape, to be put into a "
            f"bucket. Received: shape={gradient.shape}. Set it with "
            "tf.ensure_shape(gradient, variable.shape)."
        )
    return GradientSpec(name, dtype.name, dtype.size, tuple(gradient.shape))
