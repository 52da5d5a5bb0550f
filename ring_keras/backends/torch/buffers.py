"""Modules of torch in a Keras model: what they keep besides parameters.

Keras knows the parameters of a `TorchModuleWrapper`, and none of its buffers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import keras
import numpy as np
import torch

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.objects import allgather_object
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["average_buffers", "take_first_ranks_buffers"]


def take_first_ranks_buffers(model: keras.Model, process_set: ProcessSet) -> None:
    """All ranks begin with the first one's, and draw other random numbers.

    Modules draw from the generator of the process: where that is seeded alike on
    several ranks, all but one get another seed, the same in each run. A collective,
    if there are modules.
    """
    modules = _modules(model)
    if not modules:
        return
    for number, buffer in enumerate(_buffers(modules)):
        _write(buffer, _of_first(buffer, f"fit/buffers/{number}", process_set))
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    everyones = allgather_object(state, name="fit/torch_seed", process_set=process_set)
    rank = process_set.rank()
    if state in everyones[:rank]:
        torch.manual_seed(int(state[:8], 16) + rank)


def average_buffers(model: keras.Model, process_set: ProcessSet) -> None:
    """The ranks' mean of floating-point numbers; of others the first rank's.

    Variances of batch normalization are those of the ranks' batches together.
    Collective, if there are any.
    """
    modules = _modules(model)
    pairs = {
        id(module.running_var): module.running_mean
        for wrapped in modules
        for module in wrapped.modules()
        if getattr(module, "running_var", None) is not None
    }
    before = {}
    for number, buffer in enumerate(_buffers(modules)):
        name = f"fit/buffers/{number}"
        if not buffer.is_floating_point():
            _write(buffer, _of_first(buffer, name, process_set))
            continue
        value = _read(buffer).astype(np.float64)
        before[id(buffer)] = value
        mean = pairs.get(id(buffer))
        if mean is None:
            _write(buffer, _mean(value, name, process_set))
            continue
        # Its mean comes before it, and is that of all ranks by now.
        second = _mean(value + before[id(mean)] ** 2, name, process_set)
        common = _read(mean).astype(np.float64)
        _write(buffer, np.maximum(second - common**2, 0.0))


def _modules(model: keras.Model) -> list[torch.nn.Module]:
    return [
        layer.module
        for layer in internals.flattened_layers(model)
        if isinstance(layer, keras.layers.TorchModuleWrapper)
    ]


def _buffers(modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    found = [buffer for module in modules for buffer in module.buffers()]
    return list({id(buffer): buffer for buffer in found}.values())


def _read(buffer: torch.Tensor) -> np.ndarray[Any, Any]:
    value = buffer.detach().cpu()
    if value.dtype == torch.bfloat16:
        value = value.float()
    array: np.ndarray[Any, Any] = np.ascontiguousarray(value.numpy())
    return array


def _write(buffer: torch.Tensor, value: np.ndarray[Any, Any]) -> None:
    with torch.no_grad():
        buffer.copy_(torch.from_numpy(np.asarray(value)).reshape(buffer.shape))


def _of_first(
    buffer: torch.Tensor, name: str, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    value: np.ndarray[Any, Any] = _native.broadcast(
        _read(buffer).reshape(-1), 0, name, process_set.communicator_id()
    )
    return value


def _mean(
    value: np.ndarray[Any, Any], name: str, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    mean: np.ndarray[Any, Any] = _native.allreduce(
        value.reshape(-1),
        op=ReduceOp.AVERAGE.value,
        name=name,
        communicator_id=process_set.communicator_id(),
    )
    return mean.reshape(value.shape)  # type: ignore[no-any-return]
