"""The gradients that an optimizer applies: the ranks' average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ring_keras import _native
from ring_keras.backends.common.reducer import Options, Reducer
from ring_keras.backends.common.step import Step
from ring_keras.backends.torch.reduction import EarlyReduction, Reduction, divided
from ring_keras.errors import RingKerasError
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["TorchReducer"]


class TorchReducer(Reducer):
    """In place, in the memory of gradients."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.early: EarlyReduction | None = None
        """What begins while backward goes on; set for one step."""
        self.reduced: Sequence[Any] | None = None
        """The variables of the last update, if their own gradients were reduced."""

    def reduce(  # noqa: D102  As in Reducer.
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[torch.Tensor]:
        early, self.early = self.early, None
        if early is not None:
            if not early.expects(variables):
                early.take_all(variables)
            early.require_as_begun(gradients, variables)
        tensors = [
            _reducible(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        if early is None or not early.reduction.begun():
            whole = self.reduction(tensors, variables, step)
        elif early.expects(variables):
            whole = early.reduction
        else:
            self._reduce_others(early, tensors, variables, step)
            return tensors
        whole.begin_rest(tensors)
        whole.wait()
        self.reduced = variables if all(map(_is_same, tensors, gradients)) else None
        return tensors

    def reduction(
        self, tensors: Sequence[torch.Tensor], variables: Sequence[Any], step: Step
    ) -> Reduction:
        """Of these gradients, of which none travels yet.

        Args:
            tensors: The gradients, or others of their shapes and types.
            variables: One for each.
            step: In which they are applied.
        """
        return self._reduction(tensors, self._plan(tensors, variables, step), step)

    def _reduce_others(
        self,
        early: EarlyReduction,
        tensors: Sequence[torch.Tensor],
        variables: Sequence[Any],
        step: Step,
    ) -> None:
        """Where backward has made other gradients than in the step before.

        On all ranks, or on some: then the plans tell them apart.
        """
        plan = self._plan(tensors, variables, step)
        begun = early.begun()
        rest = [
            tensor
            for tensor, variable in zip(tensors, variables, strict=True)
            if id(variable) not in begun
        ]
        # Ranks of another plan wait for the next bucket, also where nothing is left.
        rest = rest or [torch.zeros(1)]
        reduction = self._reduction(rest, plan, step, early.reduction.begun())
        reduction.begin_rest(rest)
        early.reduction.wait()
        reduction.wait()

    def _plan(
        self, tensors: Sequence[torch.Tensor], variables: Sequence[Any], step: Step
    ) -> int:
        self.begin()
        return self.plan(tensors, variables, step.op(self.options.op))

    def _reduction(
        self, tensors: Sequence[torch.Tensor], plan: int, step: Step, first: int = 0
    ) -> Reduction:
        op = step.op(self.options.op)
        return Reduction(
            self.options,
            self.begin(),
            op,
            plan,
            step.weight if op is ReduceOp.AVERAGE else 1.0,
            divided(tensors, self.options.bucket_size_bytes),
            first,
        )

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


def _is_same(tensor: torch.Tensor, gradient: torch.Tensor) -> bool:
    return bool(tensor.data_ptr() == gradient.data_ptr())
