"""Modules of torch in a Keras model: what they keep besides parameters.

Keras knows the parameters of a `TorchModuleWrapper`, and none of its buffers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import torch

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import hooks_of
from ring_keras.job.process_set import ProcessSet
from ring_keras.training.common_values import require_common_values
from ring_keras.values.objects import allgather_object
from ring_keras.values.reduce_op import ReduceOp

__all__ = [
    "average_buffers",
    "buffers_of",
    "own_random_state",
    "take_first_ranks_buffers",
]


def take_first_ranks_buffers(
    model: keras.Model, process_set: ProcessSet, *, root: int = 0
) -> None:
    """All ranks have the first one's. A collective, if there are modules.

    But for modules in local layers, whose statistics are those of a rank's own weights.

    Args:
        model: That has them.
        process_set: The ranks.
        root: The place among them of another one, whose all are to have.

    Raises:
        RankMismatchError: On every rank, if modules have other buffers.
    """
    modules = _common_modules(model)
    if not modules:
        return
    buffers = _buffers(modules)
    described = [f"{one.dtype} {list(one.shape)}" for one in buffers]
    everyones = allgather_object(described, name="fit/buffers", process_set=process_set)
    require_common_values(
        everyones, "buffers of modules of torch", "model", process_set
    )
    for number, buffer in enumerate(buffers):
        _write(buffer, _of_one(buffer, root, f"fit/buffers/{number}", process_set))


def own_random_state(
    model: keras.Model, process_set: ProcessSet
) -> torch.Tensor | None:
    """Of torch's generator, for this rank's modules; None: as it is.

    Modules draw from the generator of the process. Where that is seeded alike on
    several ranks, all have one of their own for their modules, the same in each run, so
    that what the program draws stays alike. A collective, if there are modules.
    """
    if not _modules(model):
        return None
    before = torch.get_rng_state()
    state = hashlib.sha256(before.numpy().tobytes()).hexdigest()
    everyones = allgather_object(state, name="fit/torch_seed", process_set=process_set)
    rank = process_set.rank()
    if len(set(everyones)) == len(everyones):
        return None
    if state not in everyones[:rank]:
        return before
    generator = torch.Generator()
    generator.manual_seed(int(state[:8], 16) + rank)
    return generator.get_state()


def buffers_of(model: keras.Model) -> list[torch.Tensor]:
    """What its modules keep besides parameters, and is saved with them."""
    return _buffers(_modules(model))


def average_buffers(model: keras.Model, process_set: ProcessSet) -> None:
    """The ranks' mean of floating-point numbers; of others the first rank's.

    Variances of batch normalization are those of the ranks' batches together.
    Those of modules in local layers stay each rank's own. Collective, if there are any.
    """
    modules = _common_modules(model)
    buffers = _buffers(modules)
    before = {
        id(buffer): _read(buffer).astype(np.float64)
        for buffer in buffers
        if buffer.is_floating_point()
    }
    pairs = _pairs(modules, before)
    for number, buffer in enumerate(buffers):
        name = f"fit/buffers/{number}"
        if not buffer.is_floating_point():
            _write(buffer, _of_one(buffer, 0, name, process_set))
            continue
        value = before[id(buffer)]
        mean = pairs.get(id(buffer))
        if mean is None:
            _write(buffer, _mean(value, name, process_set))
            continue
        # Its mean comes before it, and is that of all ranks by now.
        second = _mean(value + before[id(mean)] ** 2, name, process_set)
        common = _read(mean).astype(np.float64)
        _write(buffer, np.maximum(second - common**2, 0.0))


def _modules(model: keras.Model) -> list[torch.nn.Module]:
    return [layer.module for layer in _wrappers(model)]


def _common_modules(model: keras.Model) -> list[torch.nn.Module]:
    local = {
        id(layer)
        for hook in hooks_of(model)
        for one in hook.options.local_layers
        for layer in [one, *internals.flattened_layers(one)]
    }
    return [layer.module for layer in _wrappers(model) if id(layer) not in local]


def _wrappers(model: keras.Model) -> list[Any]:
    return [
        layer
        for layer in internals.flattened_layers(model)
        if isinstance(layer, keras.layers.TorchModuleWrapper)
    ]


def _buffers(modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    """Those that are saved: others are caches, which forward may make anew."""
    found = {}
    for module in modules:
        saved = module.state_dict(keep_vars=True)
        for name, buffer in module.named_buffers():
            if name in saved:
                found[id(buffer)] = (
                    torch.view_as_real(buffer) if buffer.is_complex() else buffer
                )
    return list(found.values())


def _pairs(
    modules: list[torch.nn.Module], known: Mapping[int, Any]
) -> dict[int, torch.Tensor]:
    """Of each running variance the mean, which comes before it."""
    pairs = {}
    for module in (one for wrapped in modules for one in wrapped.modules()):
        mean = getattr(module, "running_mean", None)
        variance = getattr(module, "running_var", None)
        if isinstance(mean, torch.Tensor) and isinstance(variance, torch.Tensor):
            order = list(known)
            if {id(mean), id(variance)} <= known.keys() and (
                order.index(id(mean)) < order.index(id(variance))
                and mean.shape == variance.shape
            ):
                pairs[id(variance)] = mean
    return pairs


def _read(buffer: torch.Tensor) -> np.ndarray[Any, Any]:
    value = buffer.detach().cpu()
    if value.dtype == torch.bfloat16:
        value = value.float()
    array: np.ndarray[Any, Any] = np.ascontiguousarray(value.numpy())
    return array


def _write(buffer: torch.Tensor, value: np.ndarray[Any, Any]) -> None:
    with torch.no_grad():
        buffer.copy_(torch.from_numpy(np.asarray(value)).reshape(buffer.shape))


def _of_one(
    buffer: torch.Tensor, root: int, name: str, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    value: np.ndarray[Any, Any] = _native.broadcast(
        _read(buffer).reshape(-1), root, name, process_set.communicator_id()
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
