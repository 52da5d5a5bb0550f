"""A training step of `fit`: how much this rank's gradients count in it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras

from ring_keras import keras_internals as internals
from ring_keras.config import keras_backend
from ring_keras.errors import RingKerasError
from ring_keras.training.batch_losses import warn_of_added_losses, warn_of_own_sums
from ring_keras.values.reduce_op import ReduceOp

__all__ = [
    "Step",
    "current_step",
    "example_count",
    "see_added_losses",
    "step_of",
]


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        weight: What this rank's loss has been divided by, up to a factor common to all
            ranks, such as its number of examples. A number, or an array of one.
        adds_up: Whether the loss is a sum over the batch, and is divided by nothing.
        counts: Whether this rank has a batch for it. Else its gradients are none.
        model: Which is trained; None outside of a model's own step.
        by_sample_weights: Whether `weight` is a sum of those.
    """

    weight: Any = 1.0
    adds_up: bool = False
    counts: bool = True
    model: keras.Model | None = None
    by_sample_weights: bool = False

    def counted(self) -> Step:
        """The same, of gradients that have been multiplied by the rank's share."""
        return Step(adds_up=self.adds_up)

    def op(self, of_optimizer: ReduceOp) -> ReduceOp:
        """How gradients are reduced that an optimizer averages or sums."""
        return ReduceOp.SUM if self.adds_up else of_optimizer


_OUTSIDE = Step()


class _Steps(threading.local):
    def __init__(self) -> None:
        self.stack: list[Step] = []


_steps = _Steps()


def current_step() -> Step:
    """The one that this thread takes; in a loop of one's own, ranks count alike."""
    return _steps.stack[-1] if _steps.stack else _OUTSIDE


@contextlib.contextmanager
def _taken(step: Step) -> Iterator[None]:
    _steps.stack.append(step)
    try:
        yield
    finally:
        _steps.stack.pop()


def step_of(
    model: keras.Model, batch: Any, *, counts: bool = True
) -> contextlib.AbstractContextManager[None]:
    """The step of a model on a batch, as Keras hands it to `train_step`.

    Args:
        model: Which is trained.
        batch: This rank's.
        counts: Whether it is one of this step's, and does not only stand for one.

    Raises:
        RingKerasError: If losses add up, and others do not.
    """
    if internals.summed_losses(model):
        if internals.has_other_losses(model):
            refuse_other_losses(model)
        warn_of_own_sums(model)
        return _taken(Step(adds_up=True, counts=counts, model=model))
    total = _total_weight_of(model, batch)
    weight = float(example_count(batch)) if total is None else total
    step = Step(
        weight if counts else 0.0,
        counts=counts,
        model=model,
        by_sample_weights=total is not None,
    )
    return _taken(step)


def see_added_losses(losses: Sequence[Any]) -> None:
    """Looks at what layers have added, in a step whose forward pass is over.

    Args:
        losses: The model's, with those of its regularizers.

    Raises:
        RingKerasError: If its loss adds up, and these do not.
    """
    step = current_step()
    if step.model is None:
        return
    if step.adds_up and losses:
        refuse_other_losses(step.model)
    if step.by_sample_weights and internals.adds_losses(step.model, losses):
        warn_of_added_losses(step.model)


def refuse_other_losses(model: keras.Model) -> NoReturn:
    """What is added to a loss that adds up, and does not itself.

    Raises:
        RingKerasError: Always.
    """
    raise RingKerasError(
        f"[RK603] A loss of model '{model.name}' adds up its batch "
        "(reduction='sum'), and another one, or a regularizer, does not. With Keras's "
        f"back end {keras_backend().name} the gradients of both cannot be those of one "
        "process: use one reduction for all."
    )


def _refuse_several_weights(model: keras.Model) -> NoReturn:
    """Losses of which each would have ranks count otherwise.

    Raises:
        RingKerasError: Always.
    """
    raise RingKerasError(
        f"[RK603] Model '{model.name}' has several losses or sample weights, outputs "
        "without sample weights, or an activity regularizer, and a loss with "
        "reduction='mean_with_sample_weight'. "
        f"With Keras's back end {keras_backend().name} ranks cannot be weighted by "
        "more than one sum: use the default reduction."
    )


def _total_weight_of(model: keras.Model, batch: Any) -> Any:
    """The sum of sample weights that its loss is divided by; None if it is not."""
    if internals.loss_divides_by_sample_weight(model):
        _, _, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        divisors = internals.loss_divisors(model, sample_weight)
        if divisors == [None]:
            return None
        several = len(divisors) > 1 or len(internals.compiled_losses(model)) > 1
        if several or internals.regularizes_activity(model):
            _refuse_several_weights(model)
        return _total(divisors[0])
    return None


def _total(weights: Any) -> Any:
    """Their sum: a number; an array of JAX while a step is traced."""
    if keras_backend().name == "jax":
        # In 16 bits their sum may be infinite, and `NO_WEIGHT` is nothing.
        dtype = keras.backend.result_type(weights.dtype, "float32")
        return keras.ops.sum(keras.ops.cast(weights, dtype) + internals.NO_WEIGHT)
    values = keras.ops.convert_to_numpy(weights).astype("float64")
    return float((values + internals.NO_WEIGHT).sum())


def example_count(batch: Any) -> int:
    """Rows of a batch; 1 if it has nothing with rows.

    Those of targets, if there are any: inputs may be a graph, or a table. Else as many
    as most inputs have.
    """
    parts = [batch]
    # torch's `DataLoader` makes lists of them.
    if isinstance(batch, (tuple, list)) and len(batch) in (2, 3):
        parts = [batch[1], batch]
    for part in parts:
        shapes: list[Any] = [
            getattr(one, "shape", ()) for one in keras.tree.flatten(part)
        ]
        counts = Counter(int(shape[0]) for shape in shapes if len(shape))
        if counts:
            return max(counts, key=counts.__getitem__)
    return 1
