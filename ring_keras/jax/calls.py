"""Collectives as calls in what JAX compiles: docs/design/0007."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jax.extend.core import Primitive

from ring_keras.jax import order
from ring_keras.jax.library import has_wait, library, number_of
from ring_keras.values.arguments import require_collective_dtype

__all__ = ["Started", "run", "start", "wait"]

_numbers = itertools.count(1)

# As tf_ops/runtime/request.h has them.
_STEP_ROLES = {None: 0, "begins": 1, "continues": 2, "begins_apart": 3}

# What each call gives first, by which a wait finds its start.
_MARK = jax.ShapeDtypeStruct((), jnp.uint8)


@dataclass(frozen=True)
class Started:
    """What is under way between a start and its wait.

    Attributes:
        number: Of the start.
        mark: Which the start has given.
        arrays: They belong to the engine until the wait.
    """

    number: int
    mark: Any
    arrays: list[Any]


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
    return _call("run", [], arrays, results, kind=kind, **given)[1:]


def start(arrays: Sequence[Any], **given: Any) -> Started:
    """The first half of an allreduce of arrays of one type, which must be waited for.

    Args:
        arrays: They are overwritten, but where others use them, too.
        given: Attributes: see `_call`.
    """
    number = next(_numbers)
    has_wait(number)
    mark, *started = _call(
        "start", [], arrays, kind="allreduce", number=number, **given
    )
    return Started(number, mark, started)


def wait(started: Started) -> list[Any]:
    """The other half; the reduced arrays."""
    before = [started.mark]
    return _call("wait", before, started.arrays, number=started.number)[1:]


def _call(
    target: str,
    before: Sequence[Any],
    arrays: Sequence[Any],
    results: Sequence[Any] | None = None,
    **given: Any,
) -> list[Any]:
    """One call of custom_calls.h: a mark, and its results.

    Args:
        target: Its name there.
        before: Operands before the tensors.
        arrays: The tensors.
        results: Like which its results are; None: the tensors, in their memory.
        given: Attributes: "kind", "op" and "wire_dtype" by their names, "step" too,
            "weight" as a number or an array, and others.
    """
    library()
    for array in arrays:  # The library takes any other type for float32.
        require_collective_dtype(jnp.dtype(array.dtype).name, given.get("kind", target))
    options: dict[str, Any] = {}
    operands = list(before)
    weight = given.pop("weight", None)
    if isinstance(weight, (int, float)):
        options["weight"] = np.float64(weight)
    elif weight is not None:
        options["weight_is_operand"] = np.int64(1)
        operands.append(jnp.asarray(weight, jnp.float32).reshape(()))
    numbers = {"step": _STEP_ROLES[given.pop("step", None)]}
    for what, enumeration in _ENUMERATIONS.items():
        if (name := given.pop(what, None)) is not None:
            numbers[enumeration[0]] = number_of(enumeration[1], name)
    for name, value in (given | numbers).items():
        options[name] = value if isinstance(value, str) else np.int64(value)
    like = arrays if results is None else results
    called: list[Any] = _primitive.bind(
        *operands,
        *arrays,
        target=f"ring_keras.{target}",
        options=tuple(options.items()),
        results=tuple((tuple(one.shape), jnp.dtype(one.dtype)) for one in like),
        in_place=len(arrays) if results is None else 0,
    )
    return called


# By how functions here call it: the attribute, and what its number is of.
_ENUMERATIONS = {
    "kind": ("kind", "kind"),
    "op": ("reduce_op", "reduce_op"),
    "wire_dtype": ("wire_dtype", "dtype"),
}

_primitive = Primitive("ring_keras_call")
_primitive.multiple_results = True


def _results(*_: Any, results: Any, **__: Any) -> tuple[list[Any], Any]:
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    return [jax.typeof(one) for one in (_MARK, *arrays)], order.EFFECTS


def _lowered(
    context: Any,
    *operands: Any,
    target: str,
    options: tuple[tuple[str, Any], ...],
    results: Any,
    in_place: int,
) -> Any:
    """The custom call: behind the first operand, and the results, is JAX's token.

    What TensorFlow's computations have as the first operand orders nothing here.
    """
    nothing = mlir.ir_constant(np.zeros((), np.uint8))
    given = [nothing, *operands, order.take(context)]
    types = [
        mlir.ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))
        for aval in context.avals_out
    ]
    avals_in = [jax.typeof(_MARK), *context.avals_in]
    first = len(given) - 1 - in_place
    call = mlir.custom_call(
        target,
        result_types=[*types, mlir.token_type()],
        operands=given,
        backend_config={name: mlir.ir_attribute(value) for name, value in options},
        has_side_effect=True,
        api_version=4,
        operand_output_aliases={first + i: 1 + i for i in range(in_place)},
        operand_layouts=[*map(_row_major, avals_in), ()],
        result_layouts=[*map(_row_major, context.avals_out), ()],
    )
    *outputs, token = call.results
    order.leave(context, token)
    return outputs


def _row_major(aval: Any) -> tuple[int, ...]:
    return tuple(reversed(range(aval.ndim)))


_primitive.def_effectful_abstract_eval(_results)
mlir.register_lowering(_primitive, _lowered)
