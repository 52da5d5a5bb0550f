"""What callbacks save of a model is an event, whoever wrote the callbacks."""

import contextlib
import functools
from types import TracebackType
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.keras_internals import calls
from ring_keras.monitoring.events import add_checkpoint

__all__ = ["noted_saves"]


def noted_saves(model: keras.Model) -> contextlib.ExitStack:
    """Until it is closed, what callbacks save of this one model is noted, once.

    That is by its methods `save` and `save_weights`, as Keras's own callbacks do.
    """
    stack = contextlib.ExitStack()
    for name in ("save", "save_weights"):
        stack.enter_context(_NotedSave.of(model, name))
    return stack


class _NotedSave:
    """Replaces a method of one model for as long as anybody wants it."""

    def __init__(self, model: keras.Model, name: str) -> None:
        self._model = model
        self._name = name
        self._users = 0
        # Maybe the program's own, put there before.
        self._earlier = internals.replacement(model, name)
        self._save = getattr(model, name)
        functools.update_wrapper(self, self._save)

    @classmethod
    def of(cls, model: keras.Model, name: str) -> "_NotedSave":
        """The one installed in this very model, or a new one."""
        found = internals.replacement(model, name)
        return found if isinstance(found, cls) else cls(model, name)

    def __enter__(self) -> None:
        self._users += 1
        if self._users == 1:
            internals.replace(self._model, self._name, self)

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._users -= 1
        if self._users > 0 or self is not internals.replacement(
            self._model, self._name
        ):
            return
        internals.restore(self._model, self._name)
        if self._earlier is not None:
            internals.replace(self._model, self._name, self._earlier)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Saves; what the program saves by itself is not noted."""
        result = self._save(*args, **kwargs)
        if calls.calling_callback_list() is not None:
            path = args[0] if args else kwargs.get("filepath")
            callback = calls.calling_callback()
            who = "A callback" if callback is None else type(callback).__name__
            add_checkpoint(who, str(path), internals.steps_done_of(self._model))
        return result
