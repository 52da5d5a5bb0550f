"""The moments of all ranks' batches on torch: in 64 bits."""

from __future__ import annotations

from typing import Any

import torch

from ring_keras import _native
from ring_keras.backends.common import ranks_moments as common
from ring_keras.backends.torch.arrays import array_of
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["RanksMoments"]


class RanksMoments(common.RanksMoments):
    """See `GlobalMoments`."""

    wide = "float64"

    def _of_all_ranks(self, own: Any, part: common.Part, weight: Any) -> Any:
        if own.device.type == "meta":  # Keras asks for shapes.
            return own
        return _joined(own, part, weight)


class _OfAllRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Any, part: common.Part, weight: float) -> Any:
        count, mean, squares = own
        total = count * mean
        sums = torch.stack([count, total, squares + total * mean])
        count, total, squares = _summed(sums, part, common.NAME)
        mean = total / count.clamp(min=1.0)
        everyones = torch.stack([count, mean, squares - total * mean])
        ctx.save_for_backward(own, everyones)
        ctx.part, ctx.weight = part, weight
        return everyones

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        own, everyones = ctx.saved_tensors
        upstream = _Weighted.apply(gradients[0], ctx.part, ctx.weight)
        return common.gradient_of_own(own, everyones, upstream), None, None


# Python of ours, between what torch compiles.
_joined = torch.compiler.disable(_OfAllRanks.apply)


class _Weighted(torch.autograd.Function):
    """The ranks' gradients, times their weights, by this one's: see `divided`."""

    @staticmethod
    def forward(ctx: Any, gradient: Any, part: common.Part, weight: float) -> Any:
        ctx.part, ctx.weight = part, weight
        total = _sum_of_those_that_count(gradient * weight, part)
        return common.divided(total, torch.tensor(weight, dtype=total.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return _Plain.apply(gradients[0], ctx.part, ctx.weight), None, None


class _Plain(torch.autograd.Function):
    """The ranks' gradients: what that of `_Weighted` comes to, and the other way."""

    @staticmethod
    def forward(ctx: Any, gradient: Any, part: common.Part, weight: float) -> Any:
        ctx.part, ctx.weight = part, weight
        return _sum_of_those_that_count(gradient, part)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return _Weighted.apply(gradients[0], ctx.part, ctx.weight), None, None


def _sum_of_those_that_count(values: torch.Tensor, part: common.Part) -> torch.Tensor:
    values = values if part.counts else torch.zeros_like(values)
    return _summed(values, part, f"{common.NAME}/gradient")


def _summed(values: torch.Tensor, part: common.Part, name: str) -> torch.Tensor:
    """The sum over the ranks. Who fails before it has given up its next step."""
    host = values.detach().to("cpu", copy=True).contiguous()
    array = array_of(host)
    _native.start_allreduce(
        [array],
        [array],
        ReduceOp.SUM.value,
        name,
        part.communicator_id,
        step="begins_apart",
    ).wait()
    return host.to(values.device)
