"""What may be inside of a `DiLoCo`, and what its arguments may be."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.optimizers.extra_batches import COMMON, OWN
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.wires import WIRES

__all__ = ["check_arguments", "check_pace", "check_variables"]

# They make weights of what they keep, whatever the weights have become meanwhile.
_FORGETTING = tuple(
    getattr(keras.optimizers, name)
    for name in ("Ftrl", "ScheduleFreeAdamW")
    if hasattr(keras.optimizers, name)  # Older Keras lacks the second.
)


def check_arguments(
    inner: keras.optimizers.Optimizer,
    outer: keras.optimizers.Optimizer,
    *,
    sync_every: int,
    apart: str,
    wire: str,
    fragments: int,
    overlap_steps: int,
    pace: str | int,
) -> None:
    """Raises ValueError if they are wrong, or do not go together; see `DiLoCo`."""
    _check_wire(wire)
    if apart not in ("ranks", "hosts"):
        raise ValueError(
            f"[RK343] `apart` must be 'ranks' or 'hosts'. Received: apart={apart!r}"
        )
    _check_optimizers(inner, outer, sync_every)
    _check_fragments(fragments, sync_every)
    _check_overlap(overlap_steps, sync_every)
    check_pace(pace, apart)


def check_pace(pace: str | int, apart: str, *, was: str | int | None = None) -> None:
    """Raises ValueError if it is none, or cannot be here.

    Args:
        pace: See `DiLoCo`.
        apart: See there.
        was: That of an optimizer which is built; None if it is not.
    """
    is_number = isinstance(pace, int) and not isinstance(pace, bool) and pace >= 1
    if not is_number and pace not in (COMMON, OWN):
        raise ValueError(
            "[RK352] "
            f"`pace` must be '{COMMON}', '{OWN}', or a whole number of batches, 1 or "
            f"more. Received: pace={pace!r}"
        )
    if pace != COMMON and apart == "hosts":
        raise ValueError(
            "[RK352] "
            "`pace` goes with apart='ranks' only: the ranks of a host average the "
            "gradients of each batch, so they must take as many. Received: "
            f"pace={pace!r}, apart={apart!r}"
        )
    if was is not None and (was == COMMON) != (pace == COMMON):
        raise ValueError(
            "[RK352] "
            f"`pace` cannot become {pace!r}: the optimizer has its variables already, "
            f"for pace={was!r}, and would need others. Make a new optimizer."
        )


def check_variables(
    name: str, wire: str, fragments: int, variables: Sequence[Any]
) -> None:
    """Raises ValueError if an optimizer of that name cannot train the variables."""
    for variable in variables:
        if internals.overwrites_with_gradient(variable):
            raise ValueError(
                "[RK343] "
                f"{name} cannot train variable '{variable.path}': its new values are "
                "in place of its gradients, as in float8 training, and ranks that "
                "train apart cannot average them. Leave out sync_every."
            )
    if fragments > len(variables):
        raise ValueError(
            "[RK346] "
            "`fragments` are made of whole variables, and each must have one. "
            f"Received: fragments={fragments}, {len(variables)} variables"
        )
    count = sum(math.prod(variable.shape) for variable in variables)
    if wire == "top-k" and count > tf.int32.max:
        raise ValueError(
            "[RK345] "
            f"wire='top-k' is for at most {tf.int32.max} weights, whose places are "
            f"of 32 bits. Received: {count} weights. Use wire='int8'."
        )


def _check_fragments(fragments: int, sync_every: int) -> None:
    if (
        not isinstance(fragments, int)
        or isinstance(fragments, bool)
        or not 1 <= fragments <= sync_every
    ):
        raise ValueError(
            "[RK346] "
            "`fragments` must be a whole number, from 1 to `sync_every`. "
            f"Received: fragments={fragments!r}, sync_every={sync_every}"
        )


def _check_overlap(overlap_steps: int, sync_every: int) -> None:
    if (
        not isinstance(overlap_steps, int)
        or isinstance(overlap_steps, bool)
        or not 0 <= overlap_steps < sync_every
    ):
        raise ValueError(
            "[RK347] "
            "`overlap_steps` must be a whole number, from 0 to below `sync_every`. "
            f"Received: overlap_steps={overlap_steps!r}, sync_every={sync_every}"
        )


def _check_wire(wire: str) -> None:
    if wire not in WIRES:
        raise ValueError(
            f"[RK345] `wire` must be one of {', '.join(WIRES)}. Received: wire={wire!r}"
        )


def _check_optimizers(
    inner: keras.optimizers.Optimizer,
    outer: keras.optimizers.Optimizer,
    sync_every: int,
) -> None:
    if (
        not isinstance(sync_every, int)
        or isinstance(sync_every, bool)
        or sync_every < 1
    ):
        raise ValueError(
            "[RK343] "
            "`sync_every` must be a whole number of updates, 1 or more. "
            f"Received: sync_every={sync_every!r}"
        )
    problem = _problem_of_inner(inner) or _problem_of_outer(outer)
    if problem:
        raise ValueError(f"[RK343] {problem}")


def _problem_of_inner(inner: keras.optimizers.Optimizer) -> str:
    """Why it cannot take the steps between two meetings; empty if it can."""
    name = f"{type(inner).__name__} '{inner.name}'"
    is_loss_scaled = isinstance(inner, keras.optimizers.LossScaleOptimizer)
    if internals.is_wrapper(inner) and not is_loss_scaled:
        return (
            f"{name} hands its gradients to optimizers of its own, so it cannot be the "
            "one inside, with sync_every. Give one that updates weights itself."
        )
    if is_loss_scaled and (problem := _problem_of_inner(inner.inner_optimizer)):
        return problem
    if OptimizerHook.of(inner) is not None:
        return (
            f"{name} is a distributed optimizer already, which averages gradients in "
            "every step. With sync_every it must not: give an optimizer that has been "
            "given to nobody."
        )
    if isinstance(inner, _FORGETTING):
        return (
            f"{name} makes weights of its own state, and so would undo in its next "
            "step what the ranks have averaged. Give one that changes the weights that "
            "it finds, such as AdamW."
        )
    return _problem_of_average(inner)


def _problem_of_outer(outer: keras.optimizers.Optimizer) -> str:
    """Why it cannot be the optimizer of the meetings; empty if it can."""
    name = f"{type(outer).__name__} '{outer.name}'"
    if outer.built:
        return (
            f"{name} is built already, and the optimizer of the meetings must be new: "
            "what it has kept is of other updates. Make another one."
        )
    if internals.is_wrapper(outer) or OptimizerHook.of(outer) is not None:
        return (
            f"{name} cannot be the optimizer of the meetings: it is a distributed "
            "optimizer, or one around another. Give one that updates weights itself."
        )
    for option in ("gradient_accumulation_steps", "loss_scale_factor"):
        if getattr(outer, option):
            return (
                f"{name} cannot be the optimizer of the meetings with an option that "
                "is for the gradients of batches. Make it without. Received: "
                f"{option}={getattr(outer, option)}"
            )
    return _problem_of_average(outer)


def _problem_of_average(optimizer: keras.optimizers.Optimizer) -> str:
    if not optimizer.use_ema:
        return ""
    return (
        f"{type(optimizer).__name__} '{optimizer.name}' has use_ema, and cannot be "
        "used with sync_every, for now: averages over the steps of one rank would "
        "take the place of the ranks' common weights. Make it without use_ema."
    )
