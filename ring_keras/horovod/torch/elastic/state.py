"""The state of a loop of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ring_keras.elastic.object_state import ObjectState
from ring_keras.horovod.torch.functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)

__all__ = ["TorchState"]


class TorchState(ObjectState):
    """Holds models, optimizers, schedulers and samplers, and plain values.

    Each is an attribute: `TorchState(model, optimizer, epoch=0).epoch`.

    Args:
        model: A module, or None.
        optimizer: An optimizer, or None.
        **values: Further modules and optimizers, anything else with `state_dict()` and
            `load_state_dict()`, or plain values, as `broadcast_object` takes them.

    Raises:
        ValueError: If a name is that of a method.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        values = {"model": model, "optimizer": optimizer, **values}
        self._kept = [name for name, value in values.items() if _has_state(value)]
        self._saved: dict[str, Any] = {}
        # It looks at all names, and keeps what has no way of its own.
        super().__init__(
            **{name: None if name in self._kept else values[name] for name in values}
        )
        self._names = [name for name in self._names if name not in self._kept]
        for name in self._kept:
            setattr(self, name, values[name])
        self.save()

    def save(self) -> None:
        """Keeps a copy of everything in memory."""
        # All or nothing: an interrupt must not leave half of another step.
        saved = {
            name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._kept
        }
        super().save()
        self._saved = saved

    def restore(self) -> None:
        """Returns to the last copy. Gradients are dropped: they are of a later step."""
        super().restore()
        for name in self._kept:
            kept = getattr(self, name)
            kept.load_state_dict(copy.deepcopy(self._saved[name]))
            if isinstance(kept, torch.optim.Optimizer):
                for group in kept.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None

    def take_from(self, source: int) -> None:
        """Takes everything of that rank; a collective."""
        for name in self._kept:
            kept = getattr(self, name)
            if isinstance(kept, torch.nn.Module):
                broadcast_parameters(kept.state_dict(), source)
            elif isinstance(kept, torch.optim.Optimizer):
                broadcast_optimizer_state(kept, source)
            else:
                kept.load_state_dict(
                    broadcast_object(kept.state_dict(), source, f"elastic/{name}")
                )
        super().take_from(source)


def _has_state(value: Any) -> bool:
    return all(
        callable(getattr(value, method, None))
        for method in ("state_dict", "load_state_dict")
    )
