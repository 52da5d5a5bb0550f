"""The order of calls: that in which programs make them, the same on every rank.

XLA runs what is independent in an order of its own, and may leave out what nobody uses.
JAX keeps an order for what has an effect, through functions, branches, loops and
derivatives: by a token, which each such operation takes from the one before it.

What JAX compiles with such operations it begins in half a millisecond, as it hands the
token from one computation to the next. `contained` spares that, where a computation
begins when the one before it has ended.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import dispatch, effects
from jax._src.core import eval_jaxpr, trace_state_clean
from jax._src.interpreters import mlir
from jax.extend.core import Primitive

__all__ = ["EFFECTS", "contained", "forget_failed", "jit", "leave", "take"]


class _Communicates(effects.Effect):  # type: ignore[misc]
    """Of operations that other ranks take part in."""

    def __str__(self) -> str:
        return "Communicates"


_COMMUNICATES = _Communicates()

EFFECTS = {_COMMUNICATES}
"""Those of an operation that is to keep its place."""

for _allowed in (
    effects.ordered_effects,
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_Communicates)


def take(context: Any) -> Any:
    """The token of the operation before the one that is being lowered."""
    return context.tokens_in.get(_COMMUNICATES)


def leave(context: Any, token: Any) -> None:
    """That for the next one."""
    own = mlir.TokenSet({_COMMUNICATES: token})
    context.set_tokens_out(context.tokens_in.update_tokens(own))


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """As `jax.jit`, for a function with collectives that is called in a loop.

    It begins in microseconds, as one without collectives does, where what `jax.jit`
    compiles takes 0.2 ms, and more with many arrays. Its collectives keep their order
    among themselves. To keep that among several functions, and other collectives, let
    each take what the one before it has given, as a training step takes the weights:
    else one of them may meet that of another on another rank, if it has the same name.

    Args:
        function: It gives a tree of arrays.
        options: Of `jax.jit`, such as `donate_argnums`.

    Returns:
        The compiled function, with its `lower`. Within another that JAX traces, it is
        that of `jax.jit`.
    """
    compiled = jax.jit(contained(function), **options)
    part_of_another = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (compiled if trace_state_clean() else part_of_another)(*args, **kwargs)

    call.lower = compiled.lower  # type: ignore[attr-defined]
    return call


def contained(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for JAX to compile: its operations keep their order among themselves.

    It returns a tree of arrays, and has neither a derivative nor a rule for batches.
    """

    @functools.wraps(function)
    def contains(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, jax.core.Tracer)
        ]
        if not places:
            return function(*args, **kwargs)  # JAX compiles nothing.

        # A new one each time: JAX takes what it has traced of a function before, though
        # that may be of a job that is over.
        def of_arrays(*arrays: Any) -> Any:
            for place, array in zip(places, arrays, strict=True):
                leaves[place] = array
            given, named = jax.tree.unflatten(tree, leaves)
            return function(*given, **named)

        arrays = [leaves[place] for place in places]
        closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        results = _contained.bind(*closed.consts, *arrays, jaxpr=closed.jaxpr)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return contains


_contained = Primitive("ring_keras_contained")
_contained.multiple_results = True


def _results(*_: Any, jaxpr: Any) -> tuple[list[Any], Any]:
    return [each.aval for each in jaxpr.outvars], jaxpr.effects - EFFECTS


def _lowered(context: Any, *operands: Any, jaxpr: Any) -> Any:
    others = dict(context.tokens_in.items())
    begun = {**others, _COMMUNICATES: mlir.hlo.create_token()}
    inner = context.replace(tokens_in=mlir.TokenSet(begun))
    count = len(jaxpr.constvars)

    def computed(*values: Any) -> list[Any]:
        found: list[Any] = eval_jaxpr(jaxpr, values[:count], *values[count:])
        return found

    outputs = mlir.lower_fun(computed)(inner, *operands)
    left = dict(inner.tokens_out.items())
    context.set_tokens_out(mlir.TokenSet({effect: left[effect] for effect in others}))
    return outputs


_contained.def_effectful_abstract_eval(_results)
mlir.register_lowering(_contained, _lowered)


def forget_failed() -> None:
    """What follows in this thread does not depend on a computation that has failed."""
    dispatch.runtime_tokens.clear()


@atexit.register
def _forget_handled() -> None:
    """JAX would print an error again that the program has handled."""
    try:
        dispatch.runtime_tokens.block_until_ready()
    except Exception:
        forget_failed()
