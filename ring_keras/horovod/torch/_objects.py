"""Plain values and tensors of all ranks, by the engine's own form: nothing is pickled.

A tensor arrives as a tensor of its type, where `ring_keras.broadcast_object` makes an
array of it.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch

from ring_keras.backends.torch.arrays import array_of, tensor_of
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values import objects

__all__ = ["allgather_object", "broadcast_object"]

# Every tuple of the program's travels inside of a tuple that begins with one of these.
_TUPLE, _TENSOR = "tuple", "tensor"
# States of modules, and of schedulers.
_MAPPINGS = {"ordered dict": collections.OrderedDict, "counter": collections.Counter}


def _packed(value: Any) -> Any:
    """What the engine's form can hold; the rest it refuses, on all ranks."""
    kind = type(value)
    if kind is tuple:
        return _TUPLE, [_packed(item) for item in value]
    if kind is list:
        return [_packed(item) for item in value]
    if kind is dict:
        return {key: _packed(item) for key, item in value.items()}
    for name, mapping in _MAPPINGS.items():
        if kind is mapping:
            return name, {key: _packed(item) for key, item in value.items()}
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        try:
            return _TENSOR, array_of(plain)
        except TypeError:  # Of a type that NumPy has not: refused, as what follows.
            return value
    return value


def _unpacked(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_unpacked(item) for item in value]
    if kind is dict:
        return {key: _unpacked(item) for key, item in value.items()}
    if kind is not tuple:
        return value
    what, content = value
    if what == _TENSOR:
        return tensor_of(np.asarray(content))
    items = _unpacked(content)
    return tuple(items) if what == _TUPLE else _MAPPINGS[what](items)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a value from one rank to all.

    Args:
        obj: Plain values, as `ring_keras.broadcast_object` takes them, and dense
            tensors. Only the root's is used.
        root_rank: The rank of the whole job that sends.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        The root's value: `obj` itself on the root, a copy on the others, with tensors
        in host memory.

    Raises:
        TypeError: On the root, if `obj` holds anything else.
        RingKerasError: On the others then.
    """
    is_root = process_set.rank() == process_set.position_of(root_rank)
    sent = objects.broadcast_object(
        _packed(obj) if is_root else None,
        root_rank,
        name=name,
        process_set=process_set,
    )
    return obj if is_root else _unpacked(sent)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Collects a value from every rank.

    Args:
        obj: This rank's; see `broadcast_object`.
        name: See `allreduce`.
        process_set: The ranks that take part.

    Returns:
        Copies of the values in the order of ranks, the same on every rank.

    Raises:
        TypeError: If `obj` holds anything but plain values and tensors.
        RingKerasError: On the other ranks then.
    """
    gathered = objects.allgather_object(
        _packed(obj), name=name, process_set=process_set
    )
    return [_unpacked(one) for one in gathered]
