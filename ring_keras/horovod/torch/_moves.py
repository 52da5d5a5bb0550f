"""Collectives that move rows and compute nothing, with Horovod's arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ring_keras import _native
from ring_keras.backends.torch.arrays import array_of, tensor_of
from ring_keras.horovod.torch._allreduce import allreduce
from ring_keras.horovod.torch._arrays import require_dense
from ring_keras.horovod.torch._handles import Pending, keep
from ring_keras.horovod.torch._reduce import full_name, name_of_member, write_back
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.own_collectives import require_own_collectives
from ring_keras.values.reduce_op import Average
from ring_keras.values.refusals import refusals_told, stay_away_from

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]


def _begin_allgathers(
    tensors: Sequence[torch.Tensor],
    function: str,
    name: str,
    process_set: ProcessSet,
    *,
    blocks: bool = False,
) -> Pending:
    require_own_collectives(f"horovod.torch.{function}")
    names = [name_of_member(name, number) for number in range(len(tensors))]
    try:
        for tensor in tensors:
            _require_rows(tensor, function)
    except Exception as error:
        stay_away_from(names, process_set, error)
        raise
    communicator = process_set.communicator_id()
    operations = [
        _native.start_allgather(
            array_of(tensor.detach().contiguous()), one, communicator, blocks
        )
        for one, tensor in zip(names, tensors, strict=True)
    ]
    return Pending(
        operations, lambda: [tensor_of(one.take_output()) for one in operations]
    )


def _require_rows(tensor: torch.Tensor, function: str) -> None:
    require_dense(tensor, function)
    if tensor.dim() == 0:
        raise ValueError(
            f"[RK147] horovod.torch.{function} joins rows, and a scalar has none. "
            "Use tensor.reshape(1)."
        )


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allgather; see `allgather`. The result has no gradient."""
    pending = _begin_allgathers(
        [tensor], "allgather", full_name("allgather", name), process_set
    )
    return keep(Pending([pending], lambda: pending.result()[0]))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an allgather of each of the tensors; see `allgather_async`."""
    name = full_name("grouped_allgather", name)
    return keep(_begin_allgathers(tensors, "grouped_allgather", name, process_set))


class _Allgather(torch.autograd.Function):
    """Its gradient is the average over the ranks, of this rank's rows."""

    @staticmethod
    def forward(
        ctx: Any, function: str, name: str, members: ProcessSet, tensor: torch.Tensor
    ) -> torch.Tensor:
        gathered = _begin_allgathers([tensor], function, name, members, blocks=True)
        ctx.arguments = name, members, tensor.shape[0] if tensor.dim() else 0
        result: torch.Tensor = gathered.result()[0]
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        name, members, own = ctx.arguments
        (gradient,) = gradients
        averaged = allreduce(
            gradient, name=f"{name}.gradient", op=Average, process_set=members
        )
        rank = members.rank()
        # Those that have left by join() bring none.
        rows = allgather(
            torch.tensor([[rank, own]]), name=f"{name}.rows", process_set=members
        )
        first = int(rows[rows[:, 0] < rank, 1].sum())
        return None, None, None, averaged[first : first + own]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Joins the rows of all ranks' tensors, in the order of ranks.

    Args:
        tensor: Of shape (rows, ...). Ranks may have different numbers of rows, and
            agree in the rest.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        A tensor of shape (all ranks' rows, ...). Its gradient is the average over the
        ranks, as the loss is their mean.

    Raises:
        ValueError: If the tensor is a scalar, not dense or not in host memory.
        RankMismatchError: If the ranks' tensors do not fit together.
    """
    gathered: torch.Tensor = _Allgather.apply(
        "allgather", full_name("allgather", name), process_set, tensor
    )
    return gathered


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Joins the rows of each of the tensors; see `allgather`."""
    name = full_name("grouped_allgather", name)
    return [
        _Allgather.apply(
            "grouped_allgather", name_of_member(name, number), process_set, tensor
        )
        for number, tensor in enumerate(tensors)
    ]


def _begin_broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str,
    process_set: ProcessSet,
    *,
    in_place: bool,
    blocks: bool = False,
) -> Pending:
    require_own_collectives("horovod.torch.broadcast")
    with refusals_told(name, process_set):
        require_dense(tensor, "broadcast")
        root = process_set.position_of(root_rank)
    source = tensor.detach().contiguous()
    reuses = in_place or not tensor.is_contiguous()
    target = source if reuses else torch.empty_like(source)
    operation = _native.start_broadcast(
        [array_of(source)],
        [array_of(target)],
        root,
        name,
        process_set.communicator_id(),
        blocks=blocks,
    )

    def finish() -> torch.Tensor:
        if not in_place:
            return target
        write_back(tensor, target)
        return tensor

    return Pending([operation], finish)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins a broadcast; see `broadcast`. The result has no gradient."""
    name = full_name("broadcast", name)
    return keep(_begin_broadcast(tensor, root_rank, name, process_set, in_place=False))


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins a broadcast into the tensor, which must be left alone until then."""
    name = full_name("broadcast", name)
    return keep(_begin_broadcast(tensor, root_rank, name, process_set, in_place=True))


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Gives a tensor the values of one rank's, and returns it; see `broadcast`."""
    name = full_name("broadcast", name)
    result: torch.Tensor = _begin_broadcast(
        tensor, root_rank, name, process_set, in_place=True, blocks=True
    ).result()
    return result


class _Broadcast(torch.autograd.Function):
    """Its gradient is the average over the ranks, for the root; 0 for the others."""

    @staticmethod
    def forward(
        ctx: Any, root: int, name: str, members: ProcessSet, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.arguments = root, name, members
        result: torch.Tensor = _begin_broadcast(
            tensor, root, name, members, in_place=False, blocks=True
        ).result()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        root, name, members = ctx.arguments
        (gradient,) = gradients
        averaged = allreduce(
            gradient, name=f"{name}.gradient", op=Average, process_set=members
        )
        is_root = members.rank() == members.position_of(root)
        return None, None, None, averaged if is_root else torch.zeros_like(averaged)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Sends one rank's tensor to all, and leaves the others' as they are.

    Args:
        tensor: Of the same shape and type on every rank.
        root_rank: The rank of the whole job that sends.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The root's values. Its gradient is, on the root, the average over the ranks, and
        0 on the others.

    Raises:
        ValueError: If the root is not in the process set, or the tensor is not dense or
            not in host memory.
        RankMismatchError: If the ranks' tensors differ in shape or type.
    """
    result: torch.Tensor = _Broadcast.apply(
        root_rank, full_name("broadcast", name), process_set, tensor
    )
    return result


def _begin_alltoall(
    tensor: torch.Tensor,
    splits: Any,
    name: str,
    process_set: ProcessSet,
    *,
    blocks: bool = False,
) -> Pending:
    require_own_collectives("horovod.torch.alltoall")
    counts = None
    with refusals_told(name, process_set):
        require_dense(tensor, "alltoall")
        if splits is not None:
            counts = [int(count) for count in torch.as_tensor(splits).flatten()]
    if counts is not None:
        # As in Horovod, the rows behind those that are counted stay here.
        tensor = tensor[: sum(counts)]
    operation = _native.start_alltoall(
        array_of(tensor.detach().contiguous()),
        counts,
        name,
        process_set.communicator_id(),
        blocks,
    )
    return Pending([operation], functools.partial(_received, operation))


def _received(operation: _native.HostOperation) -> tuple[torch.Tensor, torch.Tensor]:
    splits = torch.tensor(operation.received_splits(), dtype=torch.int32)
    return tensor_of(operation.take_output()), splits


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begins an alltoall; see `alltoall`. The result has no gradient."""
    pending = _begin_alltoall(tensor, splits, full_name("alltoall", name), process_set)
    if splits is None:
        return keep(Pending([pending], lambda: pending.result()[0]))
    return keep(pending)


class _Alltoall(torch.autograd.Function):
    """Its gradient goes the way back."""

    @staticmethod
    def forward(
        ctx: Any, splits: Any, name: str, members: ProcessSet, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        received, received_splits = _begin_alltoall(
            tensor, splits, name, members, blocks=True
        ).result()
        if splits is None:
            sent = [len(tensor) // members.size()] * members.size()
        else:
            sent = torch.as_tensor(splits).flatten().tolist()
        ctx.arguments = received_splits, name, members, sent, len(tensor)
        ctx.mark_non_differentiable(received_splits)
        return received, received_splits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        received_splits, name, members, sent, rows = ctx.arguments
        back, back_splits = alltoall(
            gradients[0], received_splits, f"{name}.gradient", members
        )
        # What went to no rank, or to one that has left by join(), has none.
        gradient = back.new_zeros((rows, *back.shape[1:]))
        first = 0
        for count, part in zip(sent, back.split(back_splits.tolist()), strict=True):
            gradient[first : first + len(part)] = part
            first += int(count)
        return None, None, None, gradient


def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of a tensor to each rank, and joins those that come.

    Args:
        tensor: Of shape (rows, ...).
        splits: How many rows each rank gets, in the order of ranks: a tensor, or a list
            of whole numbers. Rows behind these stay here. Without it, all ranks get
            as many.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The rows that came, in the order of ranks; with `splits`, a pair of these and of
        an int32 tensor that says how many came from each. Gradients go the way back.

    Raises:
        ValueError: If the rows cannot be divided so, or the tensor is not dense or not
            in host memory.
        RankMismatchError: If the ranks' tensors do not fit together.
    """
    received, received_splits = _Alltoall.apply(
        splits, full_name("alltoall", name), process_set, tensor
    )
    return received if splits is None else (received, received_splits)
