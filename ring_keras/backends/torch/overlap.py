"""Gradients that travel while backward goes on, in a `fit` of Keras's own steps.

A step of Keras's own runs backward once, and its optimizer applies the gradients where
they lie. One step is watched: which gradients it makes, and whether each once. In later
ones a bucket begins as soon as its gradients are there. After a step with other
gradients than the one before, the next one is watched again.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import GradientHook
from ring_keras.backends.common.step import current_step
from ring_keras.backends.torch.gradients import TorchReducer
from ring_keras.backends.torch.reduction import EarlyReduction
from ring_keras.job.process_set import has_peers

__all__ = ["BackwardOverlap"]


class BackwardOverlap:
    """That of one call of `fit`.

    Args:
        model: That is trained.
        is_wanted: On all ranks, or on none. A rank without a batch of its own makes no
            gradients, and so knows of none that the others do not make any more.
    """

    def __init__(self, model: keras.Model, *, is_wanted: bool) -> None:
        self._model = model
        self._is_wanted = is_wanted
        # By the variable, by its id.
        self._handles: dict[int, Any] = {}
        # Whose gradients the last step made, in the order in which they are reduced.
        self._expected: Sequence[Any] | None = None
        self._places: dict[int, int] = {}
        # Of a step that is watched: how often backward came to each.
        self._seen: Counter[int] | None = None
        self._early: EarlyReduction | None = None
        self._is_off = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Runs a step of the model inside, on a batch of this rank's own."""
        reducer = None if self._is_off else self._reducer()
        if reducer is None:
            yield
            return
        reducer.reduced = early = None
        if self._expected is None:
            self._watch()
        else:
            tensors = [variable.value for variable in self._expected]
            reduction = reducer.reduction(tensors, self._expected, current_step())
            early = reducer.early = EarlyReduction(reduction, self._expected)
            if not self._has_other_hooks(self._expected):
                self._early = early
        try:
            yield
            self._learn(reducer.reduced, early)
        finally:
            self._early = reducer.early = self._seen = None

    def end(self) -> None:
        """Backward is as it was."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}
        self._expected = None

    def _reducer(self) -> TorchReducer | None:
        """Of a model whose steps are Keras's own; None if they may be others."""
        model = self._model
        optimizer = model.optimizer
        of_optimizer = type(optimizer).__module__
        if (
            not self._is_wanted
            or model.jit_compile
            or type(model).train_step is not keras.Model.train_step
            or "train_step" in vars(model)
            # One of the program's own may change gradients in their place.
            or not of_optimizer.startswith("keras.")
            or "apply" in vars(optimizer)
            or optimizer.loss_scale_factor
            or optimizer.gradient_accumulation_steps
            or internals.inner_optimizers(optimizer)
        ):
            return None
        hook = GradientHook.of(optimizer)
        if (
            hook is None
            or hook.options.local_layers
            or not has_peers(hook.options.process_set)
        ):
            return None
        reducer = hook.own_reducer()
        assert isinstance(reducer, TorchReducer)
        return reducer

    def _has_other_hooks(self, variables: Sequence[Any]) -> bool:
        """Whether one of the program's own may change a gradient behind ours."""
        return any(
            len(variable.value._post_accumulate_grad_hooks) > 1
            for variable in variables
            if id(variable) in self._handles
        )

    def _watch(self) -> None:
        self._seen = Counter()
        for variable in self._model.trainable_variables:
            if id(variable) not in self._handles and variable.value.requires_grad:
                self._handles[id(variable)] = (
                    variable.value.register_post_accumulate_grad_hook(
                        functools.partial(self._made, id(variable))
                    )
                )

    def _made(self, key: int, _: Any) -> None:
        """Backward has added to the gradient of this variable."""
        if self._seen is not None:
            self._seen[key] += 1
        elif self._early is not None and key in self._places:
            self._early.take(self._places[key])

    def _learn(
        self, reduced: Sequence[Any] | None, early: EarlyReduction | None
    ) -> None:
        """A step is over, in which their own gradients were reduced, if in any."""
        if self._seen is None:
            if reduced is None or (early and not early.expects(reduced)):
                self._expected = None
        elif reduced is None or any(self._seen[id(one)] != 1 for one in reduced):
            self._is_off = True
            self.end()
        else:
            self._expected = list(reduced)
            self._places = {id(one): place for place, one in enumerate(reduced)}
