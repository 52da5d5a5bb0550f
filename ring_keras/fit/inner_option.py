"""Options that an optimizer around another one does not have itself."""

from typing import Any

import keras

from ring_keras import keras_internals as internals

__all__ = ["FixedOption", "InnerOption"]

_INNER = "inner_optimizer"


class InnerOption:
    """One that is read from, and set on, the optimizer that applies gradients."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        if wrapper is None:
            return self
        if _INNER not in vars(wrapper):
            raise AttributeError(self._name)
        return getattr(_innermost(wrapper), self._name)

    def __set__(self, wrapper: Any, value: Any) -> None:
        # Keras's constructor sets defaults before there is one inside.
        if _INNER in vars(wrapper):
            setattr(_innermost(wrapper), self._name, value)


class FixedOption:
    """One that the optimizer inside is made with; it cannot be set on that around it.

    Reading it says what Keras is to do in the outer one, which is nothing.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: Any, owner: type | None = None) -> Any:
        if wrapper is None:
            return self
        try:
            return vars(wrapper)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, wrapper: Any, value: Any) -> None:
        if vars(wrapper).setdefault(self._name, value) != value:
            raise ValueError(
                "[RK343] "
                f"`{self._name}` cannot be set on {type(wrapper).__name__} "
                f"'{wrapper.name}', which trains by the optimizer inside. Make that "
                f"one with it, if it can be used there. Received: {self._name}={value}"
            )


def _innermost(wrapper: Any) -> keras.optimizers.Optimizer:
    (innermost,) = internals.innermost([getattr(wrapper, _INNER)])
    return innermost
