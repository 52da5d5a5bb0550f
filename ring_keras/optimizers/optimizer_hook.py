"""Where the reduction enters a Keras optimizer: what all kinds of it share.

Methods are replaced on the one instance. Keras saves, copies and pickles an
optimizer by its configuration and variables, so the hook goes nowhere else:
files stay free of this package, and copies are unhooked.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Optional, TypeAlias

import keras

from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.ops.arguments import Factor
from ring_keras.ops.training_step import require_same_ranks, require_unweighted
from ring_keras.optimizers.buckets import BucketPlan
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.gradient_values import Gradient
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.scattered_bucket import Division
from ring_keras.optimizers.sharded_files import ShardedFiles
from ring_keras.optimizers.step_scope import StepWeight, current_step
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["InstallHook", "OptimizerHook", "Terms", "sources_of"]


Terms: TypeAlias = dict[str, Any]
"""What the ranks must have in common to meet: plain values, by their names."""


class _Passed(threading.local):
    count = 0


# How often a hook of this thread has seen gradients where it reduces or adds them up.
_passed = _Passed()


class OptimizerHook:
    """Reduces the gradients of one optimizer; each kind where it must.

    Args:
        optimizer: The optimizer.
        options: What the user has chosen.
        install_hook: Hooks another optimizer with the same options.
        adopted: Whether the user did not ask for it; then it leaves gradients
            alone that come from a `DistributedGradientTape`. Those changed in
            between, by clipping for instance, are averaged once more, which
            leaves them as they are.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        options: ReductionOptions,
        install_hook: "InstallHook",
        *,
        adopted: bool = False,
    ) -> None:
        self.options = options
        self.adopted = adopted
        self._optimizer = optimizer
        self._install_hook = install_hook
        self._reducer = GradientReducer(
            options,
            sums_duplicates=lambda: _sums_duplicates(optimizer),
            all_variables=lambda: internals.trainable_variables(optimizer),
        )
        # While one around this optimizer has reduced already.
        self._suspended = False

    @property
    def op(self) -> ReduceOp:
        """How gradients are combined."""
        return self.options.op

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that train together."""
        return self.options.process_set

    @property
    def parts(self) -> Collection[ProcessSet]:
        """Sets of some of these ranks that meet in its steps, too."""
        return ()

    @property
    def steps_ahead(self) -> int:
        """How many of its steps a rank may begin in which it waits for nobody."""
        return 0

    @property
    def terms(self) -> Terms:
        """Else ranks would wait for others that reduce, or share averages, later."""
        names = ("gradient_accumulation_steps", "ema_overwrite_frequency")
        return {name: getattr(self._optimizer, name) for name in names}

    @property
    def latest_plan(self) -> BucketPlan | None:
        """See `GradientReducer`."""
        return self._reducer.latest_plan

    @staticmethod
    def of(optimizer: keras.optimizers.Optimizer) -> Optional["OptimizerHook"]:
        """The hook installed in this very optimizer."""
        method = internals.replacement(optimizer, internals.BUILD)
        owner = getattr(method, "__self__", None)
        return owner if isinstance(owner, OptimizerHook) else None

    def install(self) -> None:
        """Puts the hook into the optimizer."""
        self._replace(internals.BUILD, self._build)
        if self.options.shard_state:
            ShardedFiles(self._optimizer, self.process_set).install()
        if self._reducer.has_owed:
            name = internals.LOAD_VARIABLES
            load = internals.replacement(self._optimizer, name)
            self._replace(name, functools.partial(self._load, load))

    def _load(self, load: Callable[[Any], None] | None, store: Any) -> None:
        """Loads the optimizer's part of a file: from there on another training goes on.

        Args:
            load: Does it; None: as Keras does.
            store: Has the values.
        """
        if load is None:
            type(self._optimizer).load_own_variables(self._optimizer, store)
        else:
            load(store)
        self._reducer.forget_owed()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Lets gradients pass that have been reduced already."""
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before

    def _take_owed(self, inner: "OptimizerHook") -> None:
        """Shares what ranks owe with the hook of the optimizer inside.

        That one stays where `compile()` puts another optimizer around it.
        """
        self._reducer.share_owed(inner._reducer)

    def _replace(self, name: str, method: Callable[..., Any]) -> None:
        internals.replace(self._optimizer, name, method)

    def _build(self, variables: Sequence[Any]) -> None:
        """Finds the `LossScaleOptimizer` that `compile()` puts around this one.

        Before its first step, since that one must reduce in this one's place.
        """
        self._build_here(variables)
        wrapper = calls.calling_loss_scale_optimizer()
        if (
            wrapper is not None
            and OptimizerHook.of(wrapper) is None
            and self._optimizer in internals.inner_optimizers(wrapper)
        ):
            self._install_hook(wrapper, self.options, adopted=self.adopted)

    def _build_here(self, variables: Sequence[Any]) -> None:
        type(self._optimizer).build(self._optimizer, variables)

    def _reduced(
        self,
        grads: Sequence[Gradient],
        sources: Sequence[Any],
        weight: StepWeight | None,
        *,
        are_sums: bool = False,
        division: Division | None = None,
    ) -> list[Any]:
        self._note_passed()
        self._refuse_inside_loss_scaling()
        reduce = functools.partial(
            self._reducer.reduce,
            weight=weight,
            factor=self.options.passes_factor,
            loss_scale=self._loss_scale(),
            are_sums=are_sums,
        )
        step = current_step()
        if not self.adopted or step is None or not step.tape_gradients:
            self._refuse_weighted()
            return reduce(grads, sources, division=division)
        own = [
            None if id(g) in step.tape_gradients or step.keeps_own(source) else g
            for g, source in zip(grads, sources, strict=True)
        ]
        if all(g is None for g in own):
            return list(grads)
        self._refuse_weighted()
        reduced = reduce(own, sources)
        return [
            g if mine is None else r
            for g, mine, r in zip(grads, own, reduced, strict=True)
        ]

    def _refuse_weighted(self) -> None:
        if not self._reducer.active:
            return
        if self.options.op is not ReduceOp.AVERAGE:
            require_unweighted(str(self.options.op.value))
        elif not self._reducer.has_ranks_of_step():
            require_same_ranks()

    def _loss_scale(self) -> Factor:
        """What multiplies the gradients that are about to be reduced."""
        return 1.0

    def _note_passed(self) -> None:
        """Gradients have come to where they are reduced, or added up before that."""
        _passed.count += 1

    @contextlib.contextmanager
    def _must_be_passed(
        self, gradients: Sequence[Gradient], variables: Sequence[Any]
    ) -> Iterator[None]:
        """Raises where no hook has seen the gradients of an update.

        A class that overrides `apply` may hand them on to another optimizer, or apply
        them itself: then every rank would train alone.
        """
        before = _passed.count
        yield
        if _passed.count > before or not self._reducer.active:
            return
        step = current_step()
        reduced = set() if step is None else step.reduced
        if any(
            gradient is not None
            and not internals.overwrites_with_gradient(variable)
            and internals.variable_key(variable) not in reduced
            for gradient, variable in zip(gradients, variables, strict=False)
        ):
            raise RingKerasError(
                "[RK608] "
                f"optimizer '{self._optimizer.name}' of class "
                f"{type(self._optimizer).__name__} has taken an update that no rank "
                "has reduced, so every rank would train alone: it does not apply its "
                "gradients as Keras's own optimizers do. Give ring_keras."
                "DistributedOptimizer the optimizer to which it passes its gradients, "
                "or use ring_keras.DistributedGradientTape instead."
            )

    def _refuse_inside_loss_scaling(self) -> None:
        """Where one rank may not come: see `LossScaleHook`."""
        if not self._reducer.active:
            return
        wrapper = calls.calling_loss_scale_optimizer()
        if wrapper is not None and OptimizerHook.of(wrapper) is None:
            raise RingKerasError(
                "[RK602] "
                "A LossScaleOptimizer was put around the optimizer, and built, "
                "before ring_keras.DistributedOptimizer had it. Gradients must be "
                "reduced before it looks for inf and nan. Give it to "
                "ring_keras.DistributedOptimizer too, or add "
                "ring_keras.callbacks.BroadcastGlobalVariables() to the callbacks "
                "of fit()."
            )


InstallHook: TypeAlias = Callable[..., OptimizerHook]
"""`install_hook(optimizer, options, *, adopted)`, which this file cannot import."""


def sources_of(variables: Sequence[Any], grads: Sequence[Gradient]) -> list[Any]:
    """What the gradients are of; numbers where there is no telling."""
    if len(variables) != len(grads):
        return [f"gradient {index}" for index in range(len(grads))]
    return list(variables)


def _sums_duplicates(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether slices of one index count as their sum; see `GradientReducer`.

    Most Keras optimizers square, and all of them clip, the slices of a sparse
    gradient one by one.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _sums_duplicates(optimizer.inner_optimizer)
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    return type(optimizer) is keras.optimizers.SGD and not clips
