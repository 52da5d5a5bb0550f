"""Allreduces and reduce-scatters of tensors by the engine, once begun."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ring_keras import _native
from ring_keras.backends.torch.arrays import array_of, tensor_of
from ring_keras.horovod._absent import absent
from ring_keras.horovod.torch._arrays import require_dense
from ring_keras.horovod.torch._handles import Pending
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.arguments import to_reduce_op
from ring_keras.values.own_collectives import require_own_collectives
from ring_keras.values.reduce_op import Adasum, Average, ReduceOp, Sum
from ring_keras.values.refusals import refusals_told, stay_away_from

__all__ = [
    "Reduction",
    "begin_allreduce",
    "begin_reduce_scatter",
    "full_name",
    "name_of_member",
    "write_back",
]


def full_name(function: str, name: str | None) -> str:
    """By which a call meets those of other ranks, whatever form of it they use."""
    return f"{function}.{name}" if name else function


def name_of_member(name: str, number: int) -> str:
    """Of one of several collectives of a call; the first has the name alone."""
    return f"{name}/{number}" if number else name


class Reduction(NamedTuple):
    """How tensors are reduced.

    Attributes:
        op: How values are combined.
        process_set: The ranks that take part.
        prescale: Multiplies the tensors before.
        postscale: Multiplies the results.
        wire_dtype: The type in which float32 travels between hosts; None is as it is.
    """

    op: ReduceOp
    process_set: ProcessSet
    prescale: float = 1.0
    postscale: float = 1.0
    wire_dtype: str | None = None


def _averages_integers(tensor: torch.Tensor, op: ReduceOp) -> bool:
    return (
        op == Average and not tensor.is_floating_point() and tensor.dtype != torch.bool
    )


def _travelling_dtype(tensor: torch.Tensor, op: ReduceOp) -> torch.dtype:
    """The type in which it is reduced; tensors of a call with one travel together."""
    if not _averages_integers(tensor, op):
        return tensor.dtype
    # In a type that holds the sum over all ranks; 64 bits are the most.
    return torch.int64 if tensor.element_size() >= 4 else torch.int32


class _Reduced:
    """One tensor of a call, on its way.

    Args:
        tensor: The program's.
        reduction: What happens to it.
        function: Of `horovod.torch`, for errors.
    """

    def __init__(self, tensor: torch.Tensor, reduction: Reduction, function: str):
        require_dense(tensor, function)
        if reduction.op == Adasum:
            absent("op=Adasum for PyTorch", "Use hvd.Average.")
        self.tensor = tensor
        self._reduction = reduction
        self.is_copy = not tensor.is_contiguous()
        self.source = tensor.detach().contiguous()
        # As Horovod has it, and ring_keras itself has not.
        self._averages_integers = _averages_integers(tensor, reduction.op)
        op = reduction.op
        if self._averages_integers:
            wide = _travelling_dtype(tensor, op)
            self.is_copy = self.is_copy or wide != tensor.dtype
            self.source = self.source.to(wide)
            op = Sum
        name = str(self.source.dtype).removeprefix("torch.")
        self.op = to_reduce_op(op, name, f"horovod.torch.{function}")
        self.postscale = 1.0 if self._averages_integers else reduction.postscale

    def result_of(self, reduced: torch.Tensor) -> torch.Tensor:
        """What the engine has made, as what the caller wants."""
        if not self._averages_integers:
            return reduced
        size = self._reduction.process_set.size()
        if self._reduction.postscale == 1.0:
            # Rounded toward zero.
            average = torch.div(reduced, size, rounding_mode="trunc")
        else:
            average = reduced.double() * (self._reduction.postscale / size)
        return average.to(self.tensor.dtype)


def begin_allreduce(
    tensors: Sequence[torch.Tensor],
    reduction: Reduction,
    *,
    in_place: bool,
    name: str,
    function: str,
    step: str = "",
    plan: int = 0,
    blocks: bool = False,
) -> Pending:
    """Begins to reduce tensors: those of one type together.

    Args:
        tensors: Of the same shapes and types, in the same order, on every rank.
        reduction: How.
        in_place: Whether the results go into the tensors.
        name: Pairs it with the other ranks' calls.
        function: Of `horovod.torch`, for errors.
        step: What they do in a step, "begins" or "continues", if they are in one.
        plan: A number that must be equal on every rank, for what the shapes do not say.
        blocks: Whether it is over on return: sooner, as this thread does the work.

    Returns:
        Its result is the list of reduced tensors, or of `tensors` themselves.
    """
    require_own_collectives(f"horovod.torch.{function}")
    try:
        parts = [_Reduced(tensor, reduction, function) for tensor in tensors]
    except Exception as error:
        if not step:  # Or it is given up.
            given = [one for one in tensors if isinstance(one, torch.Tensor)]
            kinds = {_travelling_dtype(one, reduction.op) for one in given}
            # Who waits in each of them does not come to the second.
            count = 1 if blocks else max(len(kinds), 1)
            names = [name_of_member(name, number) for number in range(count)]
            stay_away_from(names, reduction.process_set, error)
        raise
    communicator = reduction.process_set.communicator_id()
    targets = [
        part.source if in_place or part.is_copy else torch.empty_like(part.source)
        for part in parts
    ]
    groups: dict[Any, list[int]] = {}
    for index, part in enumerate(parts):
        key = part.source.dtype, part.op, part.postscale
        groups.setdefault(key, []).append(index)
    operations = [
        _native.start_allreduce(
            [array_of(parts[index].source) for index in indices],
            [array_of(targets[index]) for index in indices],
            parts[indices[0]].op,
            name_of_member(name, number),
            communicator,
            reduction.prescale,
            parts[indices[0]].postscale,
            # Of float32 the engine knows how.
            wire_dtype=reduction.wire_dtype if dtype == torch.float32 else None,
            step="continues" if step and number else step,
            plan=plan,
            blocks=blocks,
        )
        for number, ((dtype, *_), indices) in enumerate(groups.items())
    ]

    def finish() -> list[torch.Tensor]:
        results = [part.result_of(to) for part, to in zip(parts, targets, strict=True)]
        if not in_place:
            return results
        for part, result in zip(parts, results, strict=True):
            write_back(part.tensor, result)
        return [part.tensor for part in parts]

    return Pending(operations, finish)


def begin_reduce_scatter(
    tensor: torch.Tensor,
    reduction: Reduction,
    *,
    name: str,
    function: str,
    blocks: bool = False,
) -> Pending:
    """Begins to reduce a tensor of which each rank gets a part of the rows."""
    require_own_collectives(f"horovod.torch.{function}")
    with refusals_told(name, reduction.process_set):
        part = _Reduced(tensor, reduction, function)
    operation = _native.start_reduce_scatter(
        array_of(part.source),
        part.op,
        name,
        reduction.process_set.communicator_id(),
        reduction.prescale,
        part.postscale,
        blocks,
    )
    return Pending(
        [operation],
        functools.partial(_scattered, operation, part),
    )


def _scattered(operation: _native.HostOperation, part: _Reduced) -> torch.Tensor:
    return part.result_of(tensor_of(operation.take_output()))


def write_back(tensor: torch.Tensor, result: torch.Tensor) -> None:
    """Has a tensor hold a result, which may be in its memory already."""
    plain = tensor.detach()
    if result.data_ptr() != plain.data_ptr() or result.dtype != plain.dtype:
        with torch.no_grad():
            plain.copy_(result)
    elif not tensor.is_inference():
        # Autograd must see that what it may have kept has changed.
        torch.autograd.graph.increment_version(tensor)
