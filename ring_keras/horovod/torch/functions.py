"""Giving all ranks one rank's parameters, optimizer and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ring_keras.horovod.torch._handles import synchronize
from ring_keras.horovod.torch._moves import broadcast_async_
from ring_keras.horovod.torch._objects import allgather_object, broadcast_object
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.agreement import agree_on

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Any, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives tensors the values that they have on one rank.

    Args:
        params: What `model.state_dict()`, `model.named_parameters()` or
            `model.parameters()` gives: tensors by their names, pairs of both, or
            tensors alone. The same names, or as many, on every rank.
        root_rank: The rank of the whole job that sends.
        process_set: The ranks that take part.

    Raises:
        RankMismatchError: On every rank, if the names, shapes or types differ.
        ValueError: If the root is not in the process set, or `params` is anything else.
    """
    named = _named(params)
    agree_on(
        [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in named],
        name="broadcast_parameters",
        process_set=process_set,
    )
    handles = [
        broadcast_async_(tensor, root_rank, f"parameters.{number}", process_set)
        for number, (_, tensor) in enumerate(named)
    ]
    error: BaseException | None = None
    for handle in handles:
        try:
            synchronize(handle)
        except BaseException as problem:
            error = error or problem
    if error is not None:
        raise error


def _named(params: Any) -> list[tuple[str, torch.Tensor]]:
    """In an order that is the same on every rank, without what is no tensor."""
    if isinstance(params, Mapping):
        named = [(str(name), one) for name, one in params.items()]
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor):
        pairs = [one if isinstance(one, tuple) else ("", one) for one in params]
        named = [(str(name), one) for name, one in pairs]
    else:
        raise ValueError(
            "[RK149] broadcast_parameters takes tensors by their names, such as "
            "model.state_dict(), or a list of them, or of pairs. "
            f"Received: {type(params).__module__}.{type(params).__name__}"
        )
    named = [(name, one) for name, one in named if one is not None]
    for name, one in named:
        if not isinstance(one, torch.Tensor):
            raise ValueError(
                f"[RK149] broadcast_parameters takes tensors, and {name!r} is "
                f"{type(one).__module__}.{type(one).__name__}. Send it by "
                "broadcast_object()."
            )
    # A list may give some tensors no names: these keep their order.
    return sorted(named, key=lambda pair: pair[0])


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives an optimizer the state and the options that it has on one rank.

    Ranks whose optimizer has made no update yet need not make one before.

    Args:
        optimizer: With parameters of the same number and shapes on every rank.
        root_rank: The rank of the whole job that sends.
        model: Taken, and not needed.
        process_set: The ranks that take part.

    Raises:
        ValueError: If it is `LBFGS`, whose state belongs to one process's steps.
        TypeError: On the root, if a value of the state or an option is neither a tensor
            nor a plain value.
        RingKerasError: On the others then.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "[RK149] broadcast_optimizer_state does not take torch.optim.LBFGS. Use "
            "another optimizer, such as Adam."
        )
    is_root = process_set.rank() == process_set.position_of(root_rank)
    state = broadcast_object(
        optimizer.state_dict() if is_root else None,
        root_rank,
        "broadcast_optimizer_state",
        process_set,
    )
    if is_root:
        return
    optimizer.load_state_dict(state)
    # PyTorch has given most of it the parameters' types, which the root's has not.
    own = [one for group in optimizer.param_groups for one in group["params"]]
    for number, values in state["state"].items():
        tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
        optimizer.state[own[number]].update(tensors)
