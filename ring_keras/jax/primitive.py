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
from ring_keras.jax import calls, order
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
        step: What it is to its step; None of none.
    """

    kind: str
    name: str
    communicator_id: int
    size: int
    op: str = "sum"
    root: int = 0
    is_root: bool = False
    step: str | None = None

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
        """The gradient of this rank's array, of those of all results; collective.

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
            return total if self.is_root else jnp.zeros_like(total)
        return bind(back, cotangent)


_primitive = Primitive("ring_keras_collective")


def bind(collective: Collective, array: Any) -> Any:
    """The collective of an array of this rank's."""
    return _primitive.bind(array, collective=collective)


def _call(array: Any, *, collective: Collective) -> Any:
    """As what XLA compiles has it."""
    given: dict[str, Any] = {
        "name": collective.name,
        "communicator": collective.communicator_id,
        "step": collective.step,
    }
    if collective.kind in ("allreduce", "reduce_scatter"):
        given["op"] = collective.op
    if collective.kind == "broadcast":
        given["root"] = collective.root
    like = jax.ShapeDtypeStruct(collective.shape_of(array.shape), array.dtype)
    in_place = collective.kind in ("allreduce", "broadcast")
    return calls.run(collective.kind, [array], None if in_place else [like], **given)[0]


@functools.cache
def _computation(collective: Collective) -> Any:
    return jax.jit(functools.partial(bind, collective))


def _run(array: Any, *, collective: Collective) -> Any:
    # It is compiled though nothing else is to be.
    with translated(), jax.disable_jit(False):
        return jax.block_until_ready(_computation(collective)(array))


def _shape(array: Any, *, collective: Collective) -> tuple[Any, Any]:
    return array.update(shape=collective.shape_of(array.shape)), order.EFFECTS


def _batched(
    given: Sequence[Any], axes: Sequence[Any], *, collective: Collective
) -> tuple[Any, int]:
    """One collective of all examples: rows stay the first dimension."""
    result = bind(collective, jnp.moveaxis(given[0], axes[0], -1))
    return result, result.ndim - 1


def _differentiated(
    primals: Sequence[Any], tangents: Sequence[Any], *, collective: Collective
) -> tuple[Any, Any]:
    collective.require_linear()
    result = bind(collective, primals[0])
    if type(tangents[0]) is ad.Zero:
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, bind(collective.named("tangent"), tangents[0])


def _transposed(cotangent: Any, array: Any, *, collective: Collective) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(array.aval)]
    return [collective.transposed(cotangent)]


_primitive.def_impl(_run)
_primitive.def_effectful_abstract_eval(_shape)
mlir.register_lowering(_primitive, mlir.lower_fun(_call, multiple_results=False))
batching.primitive_batchers[_primitive] = _batched
ad.primitive_jvps[_primitive] = _differentiated
ad.primitive_transposes[_primitive] = _transposed
