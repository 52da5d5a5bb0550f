"""A model's train function, with the ring's errors and what callbacks need."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras.errors import translated

__all__ = ["TrainFunction"]


class TrainFunction:
    """Wraps what Keras calls once per execution of one or more steps.

    Args:
        function: The one that Keras made.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.before_next_call: Callable[[Any], None] | None = None
        """Called once, with the iterator of the next call, before that runs."""
        self.unreported = False
        """Whether steps have run since the last report of metrics. Not after an
        error, since that ends `fit`."""

    def wrap(self, function: Callable[[Any], Any]) -> None:
        """Goes on with another one that Keras made."""
        self._function = function

    @translated()
    def __call__(self, iterator: Any) -> Any:
        """Runs one execution; raises ring_keras's errors by their own class."""
        task, self.before_next_call = self.before_next_call, None
        if task is not None:
            task(iterator)
        try:
            result = self._function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise  # The end of an epoch of unknown length.
        except BaseException:
            self.unreported = False
            raise
        self.unreported = True
        return result
