"""A collective as an operation of JAX: its shape, derivatives and batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ring_keras.errors import translated
from ring_keras.jax import calls
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["Collective", "bind"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """What it does; a function that is linear in its array, but for some reductions.

    Attributes:
        kind: As `calls.run` has it.
        name: Pairs the ranks' calls.
        communicator_id: The ranks.
        size: How many.
        op: Of a reduction.
        root: Of a broadcast, among the ranks.
        is_root: Whether this rank is.
    """

    kind: str
    name: str
    communicator_id: int
    size: int
    op: str = "sum"
    root: int = 0
    is_root: bool = False

    def shape_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """That of the result."""
        if self.kind == "allgather":
            return (shape[0] * self.size, *shape[1:])
        if self.kind == "reduce_scatter":
            return (shape[0] // self.size, *shape[1:])
        return tuple(shape)

    def named(self, suffix: str) -> Collective:
        """The same under a name of its own."""
        return dataclasses.replace(self, name=f"{self.name}/{suffix}")

    def require_linear(self) -> None:
        """Raises NotImplementedError if it has no derivative."""
        if self.op not in (ReduceOp.SUM.value, ReduceOp.AVERAGE.value):
            raise NotImplementedError(
                f"[RK412] {self.kind} '{self.name}': op='{self.op}' has no gradient; "
                "only 'sum' and 'average' do. Wrap the input in "
                "jax.lax.stop_gradient() if none is wanted."
            )

    def transposed(self, cotangent: Any) -> Any:
        """What the ranks' results depend on of this rank's array; collective.

        As on TensorFlow, the gradient of a mean is a mean: the ranks' losses count as
        one whose mean is taken.
        """
        back = self.named("gradient")
        if self.kind == "allgather":
            return bind(dataclasses.replace(back, kind="reduce_scatter"), cotangent)
        if self.kind == "reduce_scatter":
            gathered = bind(
                dataclasses.replace(back, kind="allgather", op="sum"), cotangent
            )
            average = self.op == ReduceOp.AVERAGE.value
            return gathered / self.size if average else gathered
        if self.kind == "broadcast":
            total = bind(dataclasses.replace(back, kind="allreduce"), cotangent)
            # All take part, whoever has a use for it.
            return total if self.is_root else total * 0
        return bind(back, cotangent)


_primitive = Primitive("ring_keras_collective")
_primitive.multiple_results = True


def bind(collective: Collective, array: Any) -> Any:
    """The collective of an array of this rank's, after the last one of this trace."""
    token, result = _primitive.bind(calls.order.take(), array, collective=collective)
    calls.order.leave(token)
    return result


def _call(token: Any, array: Any, *, collective: Collective) -> list[Any]:
    """As what XLA compiles has it."""
    given: dict[str, Any] = {
        "name": collective.name,
        "communicator": collective.communicator_id,
    }
    if collective.kind in ("allreduce", "reduce_scatter"):
        given["op"] = collective.op
    if collective.kind == "broadcast":
        given["root"] = collective.root
    like = jax.ShapeDtypeStruct(collective.shape_of(array.shape), array.dtype)
    in_place = collective.kind in ("allreduce", "broadcast")
    token, (result,) = calls.run_after(
        token, collective.kind, [array], None if in_place else [like], **given
    )
    return [token, result]


@functools.cache
def _computation(collective: Collective) -> Any:
    return jax.jit(functools.partial(_call, collective=collective))


def _run(token: Any, array: Any, *, collective: Collective) -> Any:
    with translated():
        return jax.block_until_ready(_computation(collective)(token, array))


def _shapes(token: Any, array: Any, *, collective: Collective) -> list[Any]:
    return [token, array.update(shape=collective.shape_of(array.shape))]


_primitive.def_impl(_run)
_primitive.def_abstract_eval(_shapes)
mlir.register_lowering(_primitive, mlir.lower_fun(_call, multiple_results=True))


def _batched(
    given: Sequence[Any], axes: Sequence[Any], *, collective: Collective
) -> tuple[list[Any], list[Any]]:
    """One collective of all examples: rows stay the first dimension."""
    token, array = given
    if axes[0] is not None:
        token = token[0]
    array = jnp.moveaxis(array, axes[1], -1)
    token, result = _primitive.bind(token, array, collective=collective)
    return [token, result], [None, result.ndim - 1]


# Of the derivatives that have been taken of calls in a trace.
_tangents = calls.Order()


def _differentiated(
    primals: Sequence[Any], tangents: Sequence[Any], *, collective: Collective
) -> tuple[list[Any], list[Any]]:
    """The tangent moves after the array does, and after the tangents before it.

    No array waits for a tangent: JAX computes them apart where it goes backward.
    """
    collective.require_linear()
    token, result = _primitive.bind(*primals, collective=collective)
    tangent = tangents[1]
    if type(tangent) is ad.Zero:
        moved = _zero_of(result)
    else:
        last, moved = _primitive.bind(
            token | _tangents.take(), tangent, collective=collective.named("tangent")
        )
        _tangents.leave(last)
    return [token, result], [_zero_of(token), moved]


def _zero_of(primal: Any) -> ad.Zero:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def _transposed(
    cotangents: Sequence[Any], token: Any, array: Any, *, collective: Collective
) -> list[Any]:
    """Backward, in the opposite order, and after all arrays have moved."""
    cotangent = cotangents[1]
    if type(cotangent) is ad.Zero:
        return [None, ad.Zero(array.aval)]
    calls.order.leave(token | calls.order.take())
    return [None, collective.transposed(cotangent)]


batching.primitive_batchers[_primitive] = _batched
ad.primitive_jvps[_primitive] = _differentiated
ad.primitive_transposes[_primitive] = _transposed
