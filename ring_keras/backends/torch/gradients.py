"""The gradients that an optimizer applies: the ranks' average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ring_keras import _native
from ring_keras.backends.common.buckets import buckets_of
from ring_keras.backends.common.reducer import Reducer
from ring_keras.backends.common.step import Step
from ring_keras.backends.torch.arrays import array_of
from ring_keras.errors import RingKerasError
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["TorchReducer"]


class TorchReducer(Reducer):
    """In place, in the memory of gradients."""

    def reduce(  # noqa: D102  As in Reducer.
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[torch.Tensor]:
        name = self.begin()
        tensors = [
            _reducible(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        op = step.op(self.options.op)
        plan = self.plan(tensors, variables, op)
        buckets = [
            bucket
            for bucket_of_any in buckets_of(
                tensors, limit=self.options.bucket_size_bytes
            )
            for bucket in _by_dtype(bucket_of_any)
        ]
        under_way = []
        for number, bucket in enumerate(buckets):
            arrays = [array_of(tensor) for tensor in bucket]
            is_float32 = bucket[0].dtype == torch.float32
            under_way.append(
                _native.start_allreduce(
                    arrays,
                    arrays,
                    op.value,
                    f"{name}/{number}",
                    self.options.process_set.communicator_id(),
                    weight=step.weight if op is ReduceOp.AVERAGE else 1.0,
                    wire_dtype=self.options.wire_dtype if is_float32 else None,
                    # What a rank that fails gives up, whose next bucket would else
                    # meet the others' of the step before.
                    step="continues" if number else "begins",
                    plan=plan,
                )
            )
        for operation in under_way:
            operation.wait()
        return tensors

    def shared(  # noqa: D102  As in Reducer.
        self, gradients: list[Any], step: Step
    ) -> list[Any]:
        if self.counts_alike(step):
            return gradients
        weight = np.array([step.weight])
        total = np.empty(1)
        self._reduce_one(weight, total, ReduceOp.SUM, "weight")
        size = self.options.process_set.size()
        share = float(step.weight * size / total[0]) if total[0] else 0.0
        return [gradient * share for gradient in gradients] if share != 1 else gradients

    def any_rank(self, here: Any) -> torch.Tensor:  # noqa: D102  As in Reducer.
        flag = np.array([bool(here)], np.int32)
        self._reduce_one(flag, flag, ReduceOp.MAX, "any")
        return torch.tensor(bool(flag[0]))

    def _reduce_one(
        self,
        value: np.ndarray[Any, Any],
        result: np.ndarray[Any, Any],
        op: ReduceOp,
        what: str,
    ) -> None:
        _native.start_allreduce(
            [value],
            [result],
            op.value,
            f"{self.begin()}/{what}",
            self.options.process_set.communicator_id(),
            step="begins",
        ).wait()


def _reducible(gradient: torch.Tensor, variable: Any) -> torch.Tensor:
    """A contiguous tensor that may be overwritten."""
    if gradient.device.type != "cpu" or gradient.layout != torch.strided:
        raise RingKerasError(
            f"[RK661] the gradient of '{variable.path}' is a tensor of layout "
            f"{gradient.layout} on {gradient.device}. With Keras's back end torch "
            "gradients are averaged in host memory, and dense: set "
            "CUDA_VISIBLE_DEVICES='' before Keras is imported."
        )
    gradient = gradient.detach()
    own = getattr(variable.value, "grad", None)
    is_own = own is not None and own.data_ptr() == gradient.data_ptr()
    if is_own and gradient.is_contiguous():
        return gradient
    # Whoever has computed it may want it as it is.
    return gradient.clone(memory_format=torch.contiguous_format)


def _by_dtype(bucket: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in bucket:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())
