"""Names that have nothing behind them here, and say so when used."""

from typing import Any, NoReturn

from ring_keras.errors import RingKerasError

__all__ = ["AbsentError", "absent", "refuse_unless_default"]


class AbsentError(RingKerasError, NotImplementedError):
    """A part of Horovod that ring_keras, or Keras 3, has no counterpart for."""


def absent(name: str, instead: str) -> NoReturn:
    """Raises the error about `name`."""
    raise AbsentError(f"[RK430] ring_keras.horovod has no {name}. {instead}")


def refuse_unless_default(name: str, value: Any, default: Any, instead: str) -> None:
    """Refuses an argument that would have to do something."""
    if value is not default and value != default:
        raise AbsentError(
            "[RK430] "
            f"ring_keras.horovod takes only {name}={default!r}. {instead} "
            f"Received: {name}={value!r}"
        )
