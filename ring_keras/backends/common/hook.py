"""Where an optimizer of Keras reduces: after accumulation, before clipping."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.backends.common.reducer import Options, Reducer
from ring_keras.backends.common.step import Step, current_step
from ring_keras.config import keras_backend
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, global_process_set, has_peers
from ring_keras.states.begun_accumulation import keep_own_accumulated
from ring_keras.states.common_layers import agree_on_layers
from ring_keras.states.first_ranks import take_first_ranks
from ring_keras.states.local_variables import IsLocal, kept_for_local
from ring_keras.states.weight_digests import all_digests, differing, variable_name

__all__ = [
    "GradientHook",
    "common_state",
    "common_weights",
    "hooks_of",
    "hooks_within",
    "local_in",
    "process_set_of",
    "refuse_variables",
    "training_on_batch",
]


class GradientHook:
    """Replaces two methods of one optimizer.

    Each back end has a class of its own, with its `reducer`.

    Args:
        optimizer: That updates weights itself.
        options: How it reduces.
    """

    reducer: type[Reducer]

    def __init__(self, optimizer: keras.optimizers.Optimizer, options: Options) -> None:
        self.options = options
        # The optimizer has the hook.
        self._optimizer = weakref.ref(optimizer)
        self._reducer = self.reducer(options)
        self._variables: list[Any] | None = None
        # Of which job, and variables by their ids: kept, so that no others get these.
        self._alike: tuple[Any, dict[int, Any]] = None, {}

    def _own(self) -> Any:
        optimizer = self._optimizer()
        assert optimizer is not None  # It has this.
        return optimizer

    @classmethod
    def of(cls, optimizer: keras.optimizers.Optimizer) -> GradientHook | None:
        """That of this very optimizer."""
        method = internals.replacement(optimizer, internals.BACKEND_APPLY_GRADIENTS)
        found = getattr(method, "__self__", None)
        # A copy of the optimizer has the original's.
        is_own = isinstance(found, cls) and found._optimizer() is optimizer
        return found if is_own else None

    def install(self) -> None:
        """Keras calls it from now on."""
        optimizer = self._own()
        internals.replace(optimizer, internals.BACKEND_APPLY_GRADIENTS, self._apply)
        internals.replace(optimizer, internals.CLIP_GRADIENTS, self._clip)

    def own_reducer(self) -> Reducer:
        """Of this optimizer's gradients."""
        return self._reducer

    def begin_together(self) -> None:
        """All ranks begin to train by it, before one of them may fail in a step."""
        if has_peers(self.options.process_set):
            self._reducer.begin()

    def finite_everywhere(self, finite: Any) -> Any:
        """Whether a loss-scaled step is an update: as one process would decide it.

        Args:
            finite: Whether this rank's gradients are.
        """
        if not has_peers(self.options.process_set):
            return finite
        overflows = self._reducer.any_rank(keras.ops.logical_not(finite))
        return keras.ops.logical_not(overflows)

    def described(self) -> str:
        """The same on ranks that train together."""
        optimizer = self._own()
        options = self.options
        return (
            f"{type(optimizer).__name__}, op={options.op}, "
            f"bucket_size_bytes={options.bucket_size_bytes}, "
            f"{options.wire_dtype or 'not compressed'}, "
            f"accumulating {optimizer.gradient_accumulation_steps} steps, "
            f"{len(options.local_layers)} local layers"
            f"{'' if options.scale_local_gradients else ', not scaled'}"
        )

    def begun_alike(self, variables: Sequence[Any]) -> None:
        """The ranks have the same values of these, and need not compare them."""
        job, known = self._known()
        self._alike = job, known | {id(variable): variable for variable in variables}

    def _known(self) -> tuple[Any, dict[int, Any]]:
        job, known = self._alike
        now = current_job()
        return (job, known) if job is now else (now, {})

    def _apply(self, gradients: list[Any], variables: list[Any]) -> None:
        optimizer = self._own()
        apply = getattr(type(optimizer), internals.BACKEND_APPLY_GRADIENTS)
        if not has_peers(self.options.process_set):
            apply(optimizer, gradients, variables)
            return
        if not self.have_begun(variables):
            refuse_variables(internals.trainable_variables(optimizer))
        self.begin_alike(variables)
        step = current_step()
        if not step.counts:  # They may be infinite, so that 0 times them is not 0.
            gradients = list(map(keras.ops.zeros_like, gradients))
        if optimizer.gradient_accumulation_steps:
            gradients = self._shares(gradients, variables, step)
        self._variables = variables
        try:
            apply(optimizer, gradients, variables)
        finally:
            self._variables = None

    def _clip(self, gradients: list[Any]) -> list[Any]:
        optimizer = self._own()
        if self._variables is not None:
            step = current_step()
            if optimizer.gradient_accumulation_steps:
                step = step.counted()
            gradients = self._reduced(gradients, self._variables, step)
        clip = getattr(type(optimizer), internals.CLIP_GRADIENTS)
        clipped: list[Any] = clip(optimizer, gradients)
        return clipped

    def _shares(
        self, gradients: list[Any], variables: list[Any], step: Step
    ) -> list[Any]:
        """Of one step, to be added up before the ranks reduce the sums."""
        shares = self._reducer.shared(gradients, step)
        if self.options.scale_local_gradients:
            return shares
        return [
            gradient if self.options.is_local(variable) else share
            for gradient, share, variable in zip(
                gradients, shares, variables, strict=True
            )
        ]

    def _reduced(
        self, gradients: list[Any], variables: list[Any], step: Step
    ) -> list[Any]:
        """Of an update; a back end may come here in a step that is none."""
        return self._reduced_but_local(gradients, variables, step)

    def _reduced_but_local(
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[Any]:
        """Those of local layers stay on their rank."""
        stay = [self.options.is_local(variable) for variable in variables]
        if not any(stay):
            return self._reducer.reduce(gradients, variables, step)
        shared = iter(
            self._reducer.reduce(
                [one for one, stays in zip(gradients, stay, strict=True) if not stays],
                [one for one, stays in zip(variables, stay, strict=True) if not stays],
                step,
            )
        )
        own = [one for one, stays in zip(gradients, stay, strict=True) if stays]
        # Of a loss that adds up, one process would have the sum of all ranks'.
        if self.options.scale_local_gradients and not step.adds_up:
            if step.model is not None:  # Elsewhere ranks count alike.
                own = self._reducer.shared(own, step)
            own = [one * (1.0 / self.options.process_set.size()) for one in own]
        local = iter(own)
        return [next(local) if stays else next(shared) for stays in stay]

    def take_modules_state(self, model: keras.Model) -> None:
        """The first rank's state of what Keras does not know; collective."""

    def have_begun(self, variables: Sequence[Any]) -> bool:
        """Whether the ranks are known to have had the same values of all of these."""
        _, known = self._known()
        return all(id(variable) in known for variable in variables)

    def begin_alike(self, variables: Sequence[Any]) -> None:
        """Before an update in a loop of one's own, or `train_on_batch`."""
        self.take_first_ranks(variables, has_gradients=True)

    def take_first_ranks(
        self, variables: Sequence[Any], *, has_gradients: bool
    ) -> None:
        """All ranks take the first one's, if they differ; collective the first time.

        Args:
            variables: What the optimizer trains.
            has_gradients: Whether those of the step are there already.
        """
        if self.have_begun(variables):
            return
        process_set = self.options.process_set
        optimizer = self._own()
        model = model_under_way()
        is_local = self.options.is_local if model is None else local_in(model)
        weights = variables if model is None else common_weights(model)
        if model is not None:
            keep_own_accumulated(model, 0, "keras/accumulated", process_set)
        state = [
            *(variable for variable in weights if not is_local(variable)),
            *common_state([optimizer], variables, is_local),
        ]
        digests = all_digests(state, "keras/start", process_set)
        changing = differing(state, digests)
        if changing:
            if process_set.rank() == 0:
                logging.warning(
                    "ring_keras: [RK328] before the first step the ranks' variables "
                    "differed: '%s'%s. All ranks have taken rank %d's.%s",
                    variable_name(changing[0]),
                    f" and {len(changing) - 1} more" if len(changing) > 1 else "",
                    process_set.ranks[0],
                    " The gradients of this one step are those at the old values."
                    if has_gradients
                    else "",
                )
            take_first_ranks(changing, "keras/start", process_set)
        if model is not None:
            self.take_modules_state(model)
            agree_on_layers(model, is_local, "keras/layers", process_set)
        self.begun_alike(variables)


class _UnderWay(threading.local):
    model: keras.Model | None = None


_under_way = _UnderWay()


def model_under_way() -> keras.Model | None:
    """That whose `train_on_batch` runs in this thread."""
    return _under_way.model


@contextlib.contextmanager
def training_on_batch(model: keras.Model) -> Iterator[None]:
    """Its `train_on_batch` runs inside."""
    before, _under_way.model = _under_way.model, model
    try:
        yield
    finally:
        _under_way.model = before


def refuse_variables(variables: Iterable[Any]) -> None:
    """Raises for what this back end does not do yet with what ranks train together.

    Raises:
        RingKerasError: On all ranks, as they have the same variables.
    """
    backend = keras_backend().name
    if current_job().config.check_reductions:
        raise RingKerasError(
            "[RK660] RING_KERAS_CHECK_REDUCTIONS=1 is not there yet with Keras's "
            f"back end {backend}. Unset it, or set KERAS_BACKEND=tensorflow."
        )
    for variable in variables:
        if internals.overwrites_with_gradient(variable):
            raise RingKerasError(
                f"[RK660] '{variable.path}' is overwritten with its gradient, as "
                "float8 layers have it. That is not there yet with Keras's back "
                f"end {backend}: set KERAS_BACKEND=tensorflow."
            )


def common_weights(model: keras.Model) -> list[Any]:
    """Those of a model that all ranks have the same of.

    The states of recurrent layers with `stateful=True` belong to the samples that the
    rank has seen last.
    """
    of_samples = {id(variable) for variable in internals.recurrent_states(model)}
    return [variable for variable in model.weights if id(variable) not in of_samples]


def common_state(
    optimizers: Iterable[keras.optimizers.Optimizer],
    weights: Sequence[Any] = (),
    is_local: IsLocal = lambda variable: False,
) -> list[Any]:
    """What all ranks have the same of: not the gradients that each adds up.

    Args:
        optimizers: Whose variables are meant.
        weights: What they may train.
        is_local: Of weights. What is kept for one is not meant.
    """
    optimizers = list(optimizers)
    own = {id(one) for one in internals.accumulators(optimizers)}
    variables = [
        *(variable for optimizer in optimizers for variable in optimizer.variables),
        *internals.unfiled_state(optimizers).values(),
    ]
    of_local = kept_for_local(optimizers, weights, is_local)
    return [
        variable
        for variable in variables
        if id(variable) not in own and not of_local(variable)
    ]


def local_in(model: keras.Model) -> IsLocal:
    """Says of a model's variables whether they are in an optimizer's local layers."""
    options = [hook.options for hook in hooks_of(model)]
    return lambda variable: any(one.is_local(variable) for one in options)


def hooks_of(model: keras.Model) -> list[GradientHook]:
    """Those of a model's optimizers, and of optimizers inside of these."""
    return hooks_within(internals.optimizers_of(model))


def hooks_within(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[GradientHook]:
    """Those of optimizers, and of what is inside of these."""
    waiting = list(optimizers)
    found = []
    for optimizer in waiting:
        hook = GradientHook.of(optimizer)
        if hook is not None:
            found.append(hook)
        waiting += internals.inner_optimizers(optimizer)
    return found


def process_set_of(model: keras.Model) -> ProcessSet:
    """The ranks that train this model together."""
    return next(
        (hook.options.process_set for hook in hooks_of(model)), global_process_set
    )
