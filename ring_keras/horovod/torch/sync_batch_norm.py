"""Batch normalization by the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ring_keras.horovod.torch._allreduce import allreduce
from ring_keras.horovod.torch._moves import allgather
from ring_keras.values.reduce_op import Sum

__all__ = ["SyncBatchNorm"]

_NAME = "SyncBatchNorm"


class SyncBatchNorm(_BatchNorm):
    """As `torch.nn.BatchNorm1d` and so on, of what all ranks have in their batches.

    It takes their arguments. Each layer communicates once in the forward and once in
    the backward pass of training. Ranks may have batches of different sizes, and be in
    `join()`.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                "[RK147] SyncBatchNorm takes tensors of shape (batch, channels, ...). "
                f"Received: shape {tuple(input.shape)}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized tensor; a collective in training."""
        self._check_input_dim(input)
        if not self.training:
            # By the running statistics, or else by those of this rank's own batch.
            return super().forward(input)
        normalized, mean, variance, count = _Normalize.apply(
            input, self.weight, self.bias, self.eps
        )
        if self.running_mean is not None:
            self._note(mean, variance, float(count))
        result: torch.Tensor = normalized
        return result

    def _note(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Normalize(torch.autograd.Function):
    """Statistics are made in float64, of each rank's mean and squared deviations.

    The rest is computed as the input is, in 32 bits at least.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float
    ) -> tuple[torch.Tensor, ...]:
        channels = x.shape[1]
        dims = [0, *range(2, x.dim())]
        own = x.numel() // channels
        wide = x.to(_wide(x))
        own_mean = wide.sum(dims, dtype=torch.float64) / max(own, 1)
        apart = wide - _along(own_mean, wide)
        own_squares = apart.square().sum(dims, dtype=torch.float64)
        head = own_mean.new_tensor([float(own)])
        row = torch.cat([head, own_mean, own_squares]).unsqueeze(0)
        rows = allgather(row, name=_NAME)
        counts, means, squares = rows.split([1, channels, channels], dim=1)
        count = counts.sum()
        if count <= 1:
            raise ValueError(
                "[RK147] SyncBatchNorm in training needs more than one value of each "
                f"channel on all ranks together. Received: shape {tuple(x.shape)} here"
            )
        mean = (counts * means).sum(0) / count
        squares = squares + counts * (means - mean).square()
        variance = squares.sum(0) / count
        scale = (variance + eps).rsqrt()
        normal = (wide - _along(mean, wide)) * _along(scale, wide)
        result = normal
        if weight is not None:
            result = normal * _along(weight, wide) + _along(bias, wide)
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return result.to(x.dtype), mean, variance, count

    @staticmethod
    # What it saves has no graph: second derivatives would lack terms.
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        normal, weight, scale, count = ctx.saved_tensors
        upstream = gradients[0].to(normal.dtype)
        dims = [0, *range(2, upstream.dim())]
        sums = upstream.sum(dims, dtype=torch.float64)
        products = (upstream * normal).sum(dims, dtype=torch.float64)
        total = allreduce(torch.cat([sums, products]), name=_NAME, op=Sum) / count
        mean, product = total.chunk(2)
        inner = upstream - _along(mean, normal) - normal * _along(product, normal)
        if weight is not None:
            scale = scale * weight
        own = (inner * _along(scale, normal)).to(gradients[0].dtype)
        if weight is None:
            return own, None, None, None
        return own, products.to(weight.dtype), sums.to(weight.dtype), None


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _along(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One value for each channel, as what goes with a tensor of many."""
    return values.to(like.dtype).reshape(1, -1, *[1] * (like.dim() - 2))
