"""Reduce-scatters, with Horovod's arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ring_keras.horovod._absent import absent
from ring_keras.horovod.torch._handles import Pending, keep
from ring_keras.horovod.torch._moves import allgather
from ring_keras.horovod.torch._reduce import (
    Reduction,
    begin_reduce_scatter,
    full_name,
)
from ring_keras.horovod.torch.compression import Compression, wire_and_own
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.own_collectives import require_own_collectives
from ring_keras.values.reduce_op import Average, ReduceOp, Sum
from ring_keras.values.refusals import stay_away_from

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

_NAME = "reducescatter"


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begins a reduce-scatter; see `reducescatter`. The result has no gradient."""
    reduction = Reduction(op or Average, process_set, prescale_factor, postscale_factor)
    return keep(
        begin_reduce_scatter(
            tensor, reduction, name=full_name(_NAME, name), function=_NAME
        )
    )


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begins a reduce-scatter of each of the tensors."""
    reduction = Reduction(op or Average, process_set, prescale_factor, postscale_factor)
    whole = full_name(_NAME, name)
    names = [f"{whole}/{number}" for number in range(len(tensors))]
    require_own_collectives(f"horovod.torch.{_NAME}")
    parts: list[Pending] = []
    try:
        for one, tensor in zip(names, tensors, strict=True):
            parts.append(
                begin_reduce_scatter(tensor, reduction, name=one, function=_NAME)
            )
    except Exception as error:
        # Of the one that was refused they know.
        stay_away_from(names[len(parts) + 1 :], process_set, error)
        raise
    return keep(Pending(parts, lambda: [part.result() for part in parts]))


class _ReduceScatter(torch.autograd.Function):
    """Its gradient is, as Horovod's, that of a sum times the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any, reduction: Reduction, name: str, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.arguments = reduction, name
        result: torch.Tensor = begin_reduce_scatter(
            tensor, reduction, name=name, function=_NAME, blocks=True
        ).result()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        reduction, name = ctx.arguments
        if reduction.op not in (Average, Sum):
            absent(
                f"gradient of a reducescatter with op={reduction.op}",
                "Call it on tensor.detach(), or use hvd.Sum or hvd.Average.",
            )
        factor = reduction.prescale * reduction.postscale
        if reduction.op == Sum:
            factor *= reduction.process_set.size()
        gathered = allgather(
            gradients[0] * factor,
            name=f"{name}.gradient",
            process_set=reduction.process_set,
        )
        return None, None, gathered


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, and gives each rank a part of its rows.

    Args:
        tensor: Of shape (rows, ...), the same on every rank. The first ranks get one
            row more, if the rows cannot be divided evenly.
        name: See `allreduce`, and so the rest.
        compression: See there. A tensor is rounded before it, within a host too.
        op: `Average` by default.
        process_set: See there.
        prescale_factor: See there.
        postscale_factor: See there.

    Returns:
        This rank's rows. Their gradient is that of a sum times the number of ranks, as
        in Horovod.
    """
    reduction = Reduction(op or Average, process_set, prescale_factor, postscale_factor)
    return _scattered(tensor, full_name(_NAME, name), compression, reduction)


def _scattered(
    tensor: torch.Tensor, name: str, compression: Any, reduction: Reduction
) -> torch.Tensor:
    wire_dtype, own = wire_and_own(compression)
    if own is None and wire_dtype is not None:
        own = compression
    context = None
    if own is not None:
        tensor, context = own.compress(tensor)
    part: torch.Tensor = _ReduceScatter.apply(reduction, name, tensor)
    return part if own is None else own.decompress(part, context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces and scatters each of the tensors; see `reducescatter`."""
    reduction = Reduction(op or Average, process_set, prescale_factor, postscale_factor)
    whole = full_name(_NAME, name)
    return [
        _scattered(tensor, f"{whole}/{number}", compression, reduction)
        for number, tensor in enumerate(tensors)
    ]
