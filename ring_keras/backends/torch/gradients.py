"""The gradients that an optimizer applies: the ranks' average."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ring_keras import _native
from ring_keras.backends.torch.arrays import array_of
from ring_keras.backends.torch.buckets import buckets_of, plan_of
from ring_keras.backends.torch.step import Step
from ring_keras.errors import RingKerasError
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["Options", "Reducer"]

# Optimizers have numbers, in the order in which they first reduce: of two with
# gradients of the same shapes each meets its own.
_numbers: PerJob[Iterator[int]] = PerJob(itertools.count)


@dataclass(frozen=True)
class Options:
    """See `DistributedOptimizer`, whose arguments these are."""

    op: ReduceOp
    process_set: ProcessSet
    bucket_size_bytes: int | None
    wire_dtype: str | None


class Reducer:
    """Reduces the gradients of one optimizer.

    Args:
        options: How.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._job: Any = None
        self._number = 0
        # With the variables, so that no others get their ids.
        self._plans: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[torch.Tensor]:
        """The reduced gradients, bitwise equal on every rank; collective.

        Args:
            gradients: Dense, in host memory, one for each variable. What is a
                variable's own `grad` is overwritten.
            variables: Keras's, the same on every rank, in the same order.
            step: In which they are applied.

        Raises:
            RankMismatchError: On every rank, if ranks train other variables, or one has
                failed.
            PeerLostError: If a rank has died or left.
            RingKerasError: If a gradient is not in host memory.
        """
        self._take_up_job()
        tensors = [
            _reducible(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        op = step.op(self._options.op)
        plan = self._plan_of(tensors, variables, op)
        buckets = [
            bucket
            for bucket_of_any in buckets_of(
                tensors, limit=self._options.bucket_size_bytes
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
                    f"keras/{self._number}/{number}",
                    self._options.process_set.communicator_id(),
                    weight=step.weight if op is ReduceOp.AVERAGE else 1.0,
                    wire_dtype=self._options.wire_dtype if is_float32 else None,
                    # What a rank that fails gives up, whose next bucket would else
                    # meet the others' of the step before.
                    step="continues" if number else "begins",
                    plan=plan,
                )
            )
        for operation in under_way:
            operation.wait()
        return tensors

    def share(self, step: Step) -> float:
        """This rank's part of all ranks' weights, times their number; collective.

        For gradients that are added up over several steps, whose ranks may have other
        numbers of examples in each.
        """
        if self._options.op is not ReduceOp.AVERAGE or step.adds_up:
            return 1.0
        self._take_up_job()
        weight = np.array([step.weight])
        total = np.empty(1)
        _native.start_allreduce(
            [weight],
            [total],
            ReduceOp.SUM.value,
            f"keras/{self._number}/weight",
            self._options.process_set.communicator_id(),
            step="begins",
        ).wait()
        size = self._options.process_set.size()
        return float(step.weight * size / total[0]) if total[0] else 0.0

    def any_rank(self, here: bool) -> bool:
        """Whether it is so on a rank, as that a gradient has overflowed; collective."""
        self._take_up_job()
        flag = np.array([here], np.int32)
        _native.start_allreduce(
            [flag],
            [flag],
            ReduceOp.MAX.value,
            f"keras/{self._number}/any",
            self._options.process_set.communicator_id(),
            step="begins",
        ).wait()
        return bool(flag[0])

    def _take_up_job(self) -> None:
        job = current_job()
        if job is not self._job:
            self._job = job
            self._number = next(_numbers.of(job))
            self._plans.clear()

    def _plan_of(
        self, tensors: Sequence[torch.Tensor], variables: Sequence[Any], op: ReduceOp
    ) -> int:
        """A number that the ranks have in common if they mean the same gradients."""
        key = (op, *map(id, variables), *(tensor.dtype for tensor in tensors))
        if key not in self._plans:
            lines = [
                f"{_name_of(variable)} {tensor.dtype} {list(tensor.shape)}"
                for variable, tensor in zip(variables, tensors, strict=True)
            ]
            self._plans[key] = plan_of([*lines, str(op)]), list(variables)
        return self._plans[key][0]


def _name_of(variable: Any) -> str:
    """Without the numbers that Keras gives to the second layer of a name, and later."""
    return re.sub(r"_\d+(?=/|$)", "", str(variable.path))


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
