"""Variables of Keras, and the variables of TensorFlow in them."""

import sys
from collections.abc import Hashable
from typing import Any

from ring_keras.keras_internals.names import ARRAY
from ring_keras.keras_internals.private_names import private

__all__ = [
    "has_array",
    "is_keras_variable",
    "is_variable",
    "tensorflow_variable",
    "variable_key",
]


def is_keras_variable(value: Any) -> bool:
    """Whether it is one of Keras's.

    By what it has: until Keras 3.6, `keras.Variable` is another class than that of
    the variables that layers make.
    """
    of_class = getattr(type(value), "value", None)
    return isinstance(of_class, property) and hasattr(value, "path")


def is_variable(value: Any) -> bool:
    """Whether it is one of Keras's or TensorFlow's."""
    # Without it there are none of its variables.
    tf = sys.modules.get("tensorflow")
    is_tensorflows = tf is not None and isinstance(value, tf.Variable)
    return is_tensorflows or is_keras_variable(value)


def tensorflow_variable(value: Any) -> Any:
    """The variable of TensorFlow's in one of Keras's; anything else as it is."""
    return value.value if is_keras_variable(value) else value


def has_array(variable: Any) -> bool:
    """Whether a variable on JAX has its value.

    `fit` takes it, a step gets its memory, and one that fails gives it an error.
    """
    array = private(variable, ARRAY)
    if array is None or array.is_deleted():
        return False
    try:
        array.block_until_ready()
    except Exception:
        return False
    return True


def variable_key(variable: Any) -> Hashable:
    """The same for a Keras variable and the TensorFlow variable in it."""
    inner = tensorflow_variable(variable)
    if is_keras_variable(variable) and not hasattr(inner, "ref"):
        return id(variable)  # Another framework's.
    # Tensors, which a gradient can be taken of too, are told apart as well.
    key: Hashable = inner.ref()
    return key
