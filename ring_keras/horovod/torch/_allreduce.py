"""Allreduces, with Horovod's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ring_keras.horovod._absent import absent
from ring_keras.horovod._op import to_op
from ring_keras.horovod.torch._handles import Pending, keep
from ring_keras.horovod.torch._reduce import Reduction, begin_allreduce, full_name
from ring_keras.horovod.torch.compression import Compression, wire_and_own
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.reduce_op import Average, ReduceOp, Sum

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]


def _begin(
    tensors: Sequence[torch.Tensor],
    function: str,
    name: str | None,
    reduction: Reduction,
    *,
    in_place: bool,
    blocks: bool,
) -> Pending:
    return begin_allreduce(
        tensors,
        reduction,
        in_place=in_place,
        name=full_name(function, name),
        function=function,
        blocks=blocks,
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allreduce; see `allreduce`, whose result `synchronize` returns.

    The tensor must not change before. The result has no gradient.
    """
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    pending = _begin(
        [tensor], "allreduce", name, reduction, in_place=False, blocks=False
    )
    return keep(Pending([pending], lambda: pending.result()[0]))


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allreduce into the tensor, which must be left alone until then."""
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    pending = _begin(
        [tensor], "allreduce", name, reduction, in_place=True, blocks=False
    )
    return keep(Pending([pending], lambda: pending.result()[0]))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor into itself, and returns it; see `allreduce`."""
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    reduced: list[torch.Tensor] = _begin(
        [tensor], "allreduce", name, reduction, in_place=True, blocks=True
    ).result()
    return reduced[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allreduce of several tensors together; see `allreduce_async`."""
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    return keep(
        _begin(
            tensors, "grouped_allreduce", name, reduction, in_place=False, blocks=False
        )
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allreduce of several tensors into themselves."""
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    return keep(
        _begin(
            tensors, "grouped_allreduce", name, reduction, in_place=True, blocks=False
        )
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors into themselves, and returns them."""
    reduction = Reduction(
        to_op(op, average), process_set, prescale_factor, postscale_factor
    )
    reduced: list[torch.Tensor] = _begin(
        tensors, "grouped_allreduce", name, reduction, in_place=True, blocks=True
    ).result()
    return reduced


class _Allreduce(torch.autograd.Function):
    """The allreduce of some tensors, whose gradient is the same of the gradients."""

    @staticmethod
    def forward(
        ctx: Any, reduction: Reduction, name: str, function: str, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = reduction, name, function
        pending = begin_allreduce(
            tensors,
            reduction,
            in_place=False,
            name=name,
            function=function,
            blocks=True,
        )
        return tuple(pending.result())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        reduction, name, function = ctx.arguments
        if reduction.op not in (Average, Sum):
            absent(
                f"gradient of an allreduce with op={reduction.op}",
                "Call it on tensor.detach(), or use hvd.Sum or hvd.Average.",
            )
        reduced = _Allreduce.apply(reduction, f"{name}.gradient", function, *gradients)
        return (None, None, None, *reduced)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors together.

    Those of one type are one collective. If it fails, it fails on all ranks; in place,
    those of other types may have been reduced.

    Args:
        tensors: The same number, shapes and types, in the same order, on every rank.
        average: Horovod's older form of `op`.
        name: See `allreduce`, and so the rest.
        compression: See there.
        op: See there.
        prescale_factor: See there.
        postscale_factor: See there.
        process_set: See there.

    Returns:
        The reduced tensors, in their order.
    """
    return _reduced(
        tensors,
        "grouped_allreduce",
        name,
        compression,
        to_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
    )


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, and leaves it as it is.

    Args:
        tensor: Dense and in host memory, of the same shape and type on every rank.
        average: Horovod's older form of `op`: False is a sum.
        name: Pairs the call with the other ranks' calls of the name: the n-th meets
            the n-th. Calls without a name are paired in their order.
        compression: A class of `Compression`: float32 travels between hosts in 16 bits.
            Or a class of your own, whose functions are called before and after.
        op: `Average` by default, which rounds integers toward zero; `Sum`, `Min`,
            `Max` or `Product`.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A tensor like `tensor`, bitwise equal on every rank. The gradient of a sum is
        the sum of the ranks' gradients, that of an average their average.

    Raises:
        RankMismatchError: If the ranks' tensors differ in shape or type.
        PeerLostError: If a rank has died or left.
        AbsentError: If `op` is `Adasum`; or, in the backward pass, `Min`, `Max` or
            `Product`.
        ValueError: If the tensor is not dense, or not in host memory.
    """
    return _reduced(
        [tensor],
        "allreduce",
        name,
        compression,
        to_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
    )[0]


def _reduced(
    tensors: Sequence[torch.Tensor],
    function: str,
    name: str | None,
    compression: Any,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    if not tensors:
        return []
    wire_dtype, own = wire_and_own(compression)
    contexts: list[Any] = []
    if own is not None:
        pairs = [own.compress(tensor) for tensor in tensors]
        tensors = [tensor for tensor, _ in pairs]
        contexts = [context for _, context in pairs]
    reduction = Reduction(
        op, process_set, prescale_factor, postscale_factor, wire_dtype
    )
    whole = full_name(function, name)
    reduced = list(_Allreduce.apply(reduction, whole, function, *tensors))
    if own is not None:
        reduced = [
            own.decompress(tensor, context)
            for tensor, context in zip(reduced, contexts, strict=True)
        ]
    return reduced


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Not there: a clear error in place of a number."""
    absent(
        "sparse_allreduce_async",
        "Reduce tensor.to_dense(), or give DistributedOptimizer sparse_as_dense=True.",
    )
