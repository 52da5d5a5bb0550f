"""What must be there for a part of the package to work."""

from __future__ import annotations

from ring_keras.config import keras_backend

__all__ = ["require_tensorflow"]


def require_tensorflow(what: str) -> None:
    """Raises where Keras computes with anything else.

    Rooms that use TensorFlow call it before they import anything: under another back
    end, TensorFlow may not be there, and ranks must not train each alone.

    Args:
        what: Needs it, in the program's words.

    Raises:
        RingKerasError: Names the back end, and what says that it is this one.
    """
    backend = keras_backend()
    if backend.name == "tensorflow":
        return
    # It brings TensorFlow where that is the back end.
    from ring_keras.errors import RingKerasError

    raise RingKerasError(
        f"[RK137] {what} needs TensorFlow, and Keras's back end in this process is "
        f"{backend.name} ({backend.source}). Set KERAS_BACKEND=tensorflow before "
        "ring_keras and Keras are imported. Other back ends have the parts of "
        "ring_keras that docs/keras.md lists, and no others yet."
    )
