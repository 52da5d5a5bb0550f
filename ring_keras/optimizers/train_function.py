"""A model's train function, with the ring's errors and a first-call task."""

from collections.abc import Callable
from typing import Any

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

    @translated()
    def __call__(self, iterator: Any) -> Any:
        """Runs one execution; raises ring_keras's errors by their own class."""
        task, self.before_next_call = self.before_next_call, None
        if task is not None:
            task(iterator)
        return self._function(iterator)
