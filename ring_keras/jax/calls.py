"""Collectives as calls in what JAX traces: docs/design/0007."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ring_keras.jax.library import has_wait, library, number_of

__all__ = ["Order", "Started", "order", "run", "run_after", "start", "wait"]

_numbers = itertools.count(1)

# As tf_ops/runtime/request.h has them.
_STEP_ROLES = {None: 0, "begins": 1, "continues": 2}


class Order:
    """XLA may run calls in any order, but each takes what the one before has left.

    That holds for calls of one trace. What is traced inside of it, as a branch, begins
    an order of its own, and data keep it in its place.
    """

    def __init__(self) -> None:
        self._state: Any = None
        self._token: Any = None

    def take(self) -> Any:
        """What the last call of this trace has left."""
        library()
        if self._state != jax.core.get_opaque_trace_state(convention="ring_keras"):
            return jnp.zeros((), jnp.uint8)
        return self._token

    def leave(self, token: Any) -> None:
        """For the next one."""
        self._state = jax.core.get_opaque_trace_state(convention="ring_keras")
        self._token = token


order = Order()
"""Of this process's calls, whatever they are."""


@dataclass(frozen=True)
class Started:
    """What is under way between a start and its wait.

    Attributes:
        arrays: They belong to the engine until the wait.
    """

    number: int
    token: Any
    arrays: list[Any] = field(default_factory=list)


def run(
    kind: str, arrays: Sequence[Any], results: Sequence[Any] | None = None, **given: Any
) -> list[Any]:
    """A collective from beginning to end.

    Args:
        kind: "allreduce", "allgather", "broadcast", "reduce_scatter" or "alltoall".
        arrays: Of one type.
        results: Of the shapes and types of the result; None: of the arrays.
        given: Attributes: see `_call`.
    """
    token, outputs = run_after(order.take(), kind, arrays, results, **given)
    order.leave(token)
    return outputs


def run_after(
    token: Any,
    kind: str,
    arrays: Sequence[Any],
    results: Sequence[Any] | None,
    **given: Any,
) -> tuple[Any, list[Any]]:
    """The same after a call that has left this token; its own, and the results."""
    attributes = {"kind": np.int64(number_of("kind", kind)), **given}
    return _call(token, "run", arrays, results, attributes, aliased=results is None)


def start(arrays: Sequence[Any], **given: Any) -> Started:
    """The first half of an allreduce of arrays of one type, which must be waited for.

    Args:
        arrays: They are overwritten, but where others use them, too.
        given: Attributes: see `_call`.
    """
    library()
    number = next(_numbers)
    has_wait(number)
    attributes = {"kind": np.int64(number_of("kind", "allreduce")), **given}
    attributes["number"] = np.int64(number)
    token, started = _call(
        order.take(), "start", arrays, None, attributes, aliased=True
    )
    order.leave(token)
    return Started(number, token, started)


def wait(started: Started) -> list[Any]:
    """The other half; the reduced arrays."""
    attributes = {"number": np.int64(started.number)}
    token, outputs = _call(
        order.take(),
        "wait",
        started.arrays,
        None,
        attributes,
        aliased=True,
        of_start=started.token,
    )
    order.leave(token)
    return outputs


def _call(
    token: Any,
    target: str,
    arrays: Sequence[Any],
    results: Sequence[Any] | None,
    given: dict[str, Any],
    *,
    aliased: bool,
    of_start: Any = None,
) -> tuple[Any, list[Any]]:
    """One call of custom_calls.h: its token, and its results.

    Args:
        token: Of the call before.
        target: Its name there.
        arrays: The tensors.
        results: Like which its results are; None: the tensors.
        given: Attributes as XLA has them; and "op", "step", "wire_dtype" by names, and
            "weight", a number or an array.
        aliased: Whether results are in the memory of the tensors.
        of_start: The token that the start gave for which this waits.
    """
    options, operands = dict(given), []
    weight = options.pop("weight", None)
    if isinstance(weight, (int, float)):
        options["weight"] = np.float64(weight)
    elif weight is not None:
        options["weight_is_operand"] = np.int64(1)
        operands.append(jnp.asarray(weight, jnp.float32).reshape(()))
    if (op := options.pop("op", None)) is not None:
        options["reduce_op"] = np.int64(number_of("reduce_op", op))
    if (wire := options.pop("wire_dtype", None)) is not None:
        options["wire_dtype"] = np.int64(number_of("dtype", wire))
    options["step"] = np.int64(_STEP_ROLES[options.pop("step", None)])
    before = [token, *([] if of_start is None else [of_start]), *operands]
    aliases = {len(before) + i: 1 + i for i in range(len(arrays))} if aliased else {}
    like = [
        jax.ShapeDtypeStruct(one.shape, one.dtype)
        for one in (token, *(arrays if results is None else results))
    ]
    # Without a side effect JAX begins a step in a tenth of the time; the order is that
    # of tokens in any case.
    token, *outputs = jax.ffi.ffi_call(
        f"ring_keras.{target}",
        like,
        has_side_effect=False,
        input_output_aliases=aliases,
    )(*before, *arrays, **options)
    return token, list(outputs)
