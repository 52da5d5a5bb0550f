"""Tells of eager collectives that leave memory behind.

To TensorFlow an op's name for the other ranks is one of its attributes, and it keeps a
kernel, 40 kB, for each that an eager op has had. To drop them would begin the sequences
of its random ops anew, so that is left to the user.
"""

from absl import logging

__all__ = ["note_eager_name"]

MOST_NAMES = 4096


class Names:
    """Those that have a kernel."""

    def __init__(self) -> None:
        self._names: set[str] | None = set()

    def note(self, name: str) -> bool:
        """One is used; whether they are so many that somebody should know, once."""
        if self._names is None or name in self._names:
            return False
        self._names.add(name)
        if len(self._names) < MOST_NAMES:
            return False
        self._names = None
        return True


# Of this process, as TensorFlow's cache is.
_names = Names()


def note_eager_name(name: str) -> None:
    """An eager op is about to have this name for the other ranks."""
    if _names.note(name):
        logging.warning(
            "ring_keras: [RK431] "
            "eager collectives have had %d names, the last of which is "
            "'%s'. TensorFlow keeps 40 kB for each, for ever: use the same name in "
            "each step.",
            MOST_NAMES,
            name,
        )
