"""What must be there for a part of the package to work."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from ring_keras.config import keras_backend

__all__ = [
    "has_own",
    "needs_tensorflow",
    "of_back_end",
    "require_tensorflow",
    "stand_in",
]

# What back ends have in place of what needs TensorFlow: the module.
_OF_ALL = {
    "DistributedOptimizer": "ring_keras.backends.common.optimizer",
    "barrier": "ring_keras.values.barrier",
    "broadcast_variables": "ring_keras.backends.common.broadcast_variables",
    "callbacks.CallbacksSide": "ring_keras.backends.common.callbacks_side",
    "data.join": "ring_keras.backends.common.join",
    "data.shard": "ring_keras.backends.common.shard",
}
_OF_BACK_ENDS: dict[str, dict[str, str]] = {
    "torch": _OF_ALL
    | {"layers.RanksMoments": "ring_keras.backends.torch.ranks_moments"},
    "jax": _OF_ALL
    | {"layers.RanksMoments": "ring_keras.backends.jax.ranks_moments"}
    | dict.fromkeys(
        ("allgather", "allreduce", "alltoall", "broadcast", "reducescatter"),
        "ring_keras.jax.collectives",
    ),
}


def has_own(name: str) -> bool:
    """Whether Keras's back end has something of its own for a name of TensorFlow's.

    Args:
        name: Within `ring_keras`.
    """
    return name in _OF_BACK_ENDS.get(keras_backend().name, {})


def of_back_end(name: str) -> Any:
    """What Keras's back end has of that name, in place of TensorFlow's; or None.

    Args:
        name: Within `ring_keras`.
    """
    module = _OF_BACK_ENDS.get(keras_backend().name, {}).get(name)
    if module is None:
        return None
    return getattr(importlib.import_module(module), name.rpartition(".")[2])


def needs_tensorflow() -> bool:
    """Whether what uses TensorFlow cannot be used in this process."""
    return keras_backend().name != "tensorflow"


def require_tensorflow(what: str, instead: str = "") -> None:
    """Raises where Keras computes with anything else.

    Rooms that use TensorFlow call it before they import anything: under another back
    end, TensorFlow may not be there, and ranks must not train each alone.

    Args:
        what: Needs it, in the program's words.
        instead: What back ends that train have in its place: a sentence.

    Raises:
        RingKerasError: Names the back end, and what says that it is this one.
    """
    if not needs_tensorflow():
        return
    backend = keras_backend()
    # It brings TensorFlow where that is the back end.
    from ring_keras.errors import RingKerasError

    raise RingKerasError(
        f"[RK137] {what} needs TensorFlow, and Keras's back end in this process is "
        f"{backend.name} ({backend.source}). Set KERAS_BACKEND=tensorflow before "
        "ring_keras and Keras are imported. Other back ends have the parts of "
        "ring_keras that docs/keras.md lists, and no others yet."
        + (f" {instead}" if instead and has_own("DistributedOptimizer") else "")
    )


@functools.cache
def stand_in(what: str, instead: str) -> type[Any]:
    """A class that nobody can make anything of, so that programs may import its name.

    Args:
        what: It stands for, which needs TensorFlow.
        instead: As for `require_tensorflow`, which is what making one comes to.
    """

    def refuse(cls: type[Any], *args: Any, **kwargs: Any) -> None:
        require_tensorflow(what, instead)

    return type(what.rpartition(".")[2], (), {"__new__": refuse})
