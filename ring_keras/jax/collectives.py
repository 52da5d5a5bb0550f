"""The collectives that programs of JAX call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ring_keras.jax.primitive import Collective, bind
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.arguments import require_collective_dtype, to_reduce_op
from ring_keras.values.own_collectives import require_own_collectives
from ring_keras.values.reduce_op import ReduceOp
from ring_keras.values.refusals import refusals_told

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reducescatter"]


def allreduce(
    tensor: Any,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str = "allreduce",
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduces arrays elementwise over all ranks.

    Differentiable for `SUM` and `AVERAGE`, forward and backward, whose gradient is
    reduced in the same way. Works in `jax.jit`, `lax.scan`, `lax.cond` and `jax.vmap`.

    Args:
        tensor: An array of any shape, or a tree of arrays; shapes and types must agree
            on every rank.
        op: How to combine values. `AVERAGE` rejects integers; bool takes `MIN` and
            `MAX`.
        name: Pairs this call with the other ranks' calls. The n-th call with a name on
            one rank is paired with the n-th call on every other, so ranks that make
            their calls in the same order need no name.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        What is like `tensor`, bitwise equal on every rank.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        RankMismatchError: If ranks disagree on shape, dtype or op. In what JAX
            compiles it is a `JaxRuntimeError`, unless `ring_keras.errors.translated()`
            is around it.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent for
            `RING_KERAS_COLLECTIVE_TIMEOUT_S` seconds.
    """
    with _told("allreduce", name, process_set):
        # All of them before the first one travels.
        arrays = jax.tree.map(lambda one: _checked(one, "allreduce"), tensor)
        ops = jax.tree.map(
            lambda one: to_reduce_op(op, one.dtype.name, "allreduce"), arrays
        )
    return jax.tree.map(
        lambda array, own: _run("allreduce", array, name, process_set, op=own),
        arrays,
        ops,
    )


def allgather(
    tensor: Any, *, name: str = "allgather", process_set: ProcessSet | None = None
) -> Any:
    """Concatenates the ranks' arrays along the first dimension.

    Differentiable: a rank gets the sum of the gradients of its own rows.

    Args:
        tensor: All ranks have as many rows, as JAX must know the result's shape; the
            dtype must agree, too. A scalar counts as one row.
        name: See `allreduce`.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The rows of rank 0, then those of rank 1, and so on; equal on every rank.

    Raises:
        RankMismatchError: As in `allreduce`, if ranks disagree on the shape or dtype.
    """
    with _told("allgather", name, process_set):
        array = _checked(tensor, "allgather")
    return _run("allgather", array.reshape(array.shape or (1,)), name, process_set)


def broadcast(
    tensor: Any,
    root_rank: int,
    *,
    name: str = "broadcast",
    process_set: ProcessSet | None = None,
) -> Any:
    """Gives all ranks the array of one.

    Differentiable: the root gets the sum of the ranks' gradients, the others zeros.

    Args:
        tensor: An array, or a tree of arrays, of the same shapes and types on every
            rank.
        root_rank: The rank of the whole job whose values all get.
        name: See `allreduce`.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The root's.

    Raises:
        ValueError: If the root is none of the ranks.
        RankMismatchError: As in `allreduce`, if ranks disagree.
    """
    with _told("broadcast", name, process_set):
        root = (process_set or global_process_set).position_of(root_rank)
        arrays = jax.tree.map(lambda one: _checked(one, "broadcast"), tensor)
    return jax.tree.map(
        lambda array: _run("broadcast", array, name, process_set, root), arrays
    )


def reducescatter(
    tensor: Any,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    *,
    name: str = "reducescatter",
    process_set: ProcessSet | None = None,
) -> Any:
    """Reduces as `allreduce` does, and gives each rank an equal part of the rows.

    Differentiable for `SUM` and `AVERAGE`.

    Args:
        tensor: Its rows must be a multiple of the number of ranks.
        op: How to combine values.
        name: See `allreduce`.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The rank's rows of the reduction.

    Raises:
        ValueError: If the rows cannot be divided.
        RankMismatchError: As in `allreduce`, if ranks disagree.
    """
    with _told("reducescatter", name, process_set):
        array = _divisible(tensor, "reducescatter", process_set)
        reduce_op = to_reduce_op(op, array.dtype.name, "reducescatter")
    return _run("reduce_scatter", array, name, process_set, op=reduce_op)


def alltoall(
    tensor: Any, *, name: str = "alltoall", process_set: ProcessSet | None = None
) -> Any:
    """Sends each rank an equal part of the rows, and joins what comes.

    Differentiable.

    Args:
        tensor: Its rows must be a multiple of the number of ranks.
        name: See `allreduce`.
        process_set: Ranks taking part. Defaults to all.

    Returns:
        What is of the shape of `tensor`: the rows from rank 0, then from rank 1, and
        so on.

    Raises:
        ValueError: If the rows cannot be divided.
        RankMismatchError: As in `allreduce`, if ranks disagree.
    """
    with _told("alltoall", name, process_set):
        array = _divisible(tensor, "alltoall", process_set)
    return _run("alltoall", array, name, process_set)


@contextlib.contextmanager
def _told(function: str, name: str, process_set: ProcessSet | None) -> Iterator[None]:
    """In it arguments are looked at; the other ranks hear if this one refuses them."""
    require_own_collectives(f"ring_keras.jax.{function}")
    with refusals_told(name, process_set):
        try:
            yield
        except Exception:
            # What JAX has begun by now comes before.
            with contextlib.suppress(Exception):
                jax.effects_barrier()
            raise


def _checked(tensor: Any, function: str) -> Any:
    array = jnp.asarray(tensor)
    require_collective_dtype(array.dtype.name, function)
    return array


def _divisible(tensor: Any, function: str, process_set: ProcessSet | None) -> Any:
    array = _checked(tensor, function)
    size = (process_set or global_process_set).size()
    if not array.ndim or array.shape[0] % size:
        raise ValueError(
            f"[RK403] ring_keras.{function} divides rows among {size} ranks: give it a "
            f"multiple of {size}. Received: shape={array.shape}"
        )
    return array


def _run(
    kind: str,
    array: Any,
    name: str,
    process_set: ProcessSet | None,
    root: int = 0,
    op: str = "sum",
) -> Any:
    ranks = process_set or global_process_set
    collective = Collective(
        kind=kind,
        name=name,
        communicator_id=ranks.communicator_id(),
        size=ranks.size(),
        op=op,
        root=root,
        is_root=ranks.rank() == root,
    )
    return bind(collective, array)
