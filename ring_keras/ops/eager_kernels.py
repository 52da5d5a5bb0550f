"""Keeps names without end from filling TensorFlow's cache of eager kernels.

To TensorFlow an op's name for the other ranks is one of its attributes, and it keeps a
kernel, 40 kB, for each that an eager op has had. It never drops one by itself.
"""

from tensorflow.python.eager import context

__all__ = ["note_eager_name"]


class Names:
    """Those that may have a kernel.

    Args:
        limit: How many may, before it is asked whether they come back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: set[str] = set()
        self._before: set[str] = set()

    def note(self, name: str) -> bool:
        """One is used; whether kernels should be dropped."""
        if name in self._names:
            return False
        self._names.add(name)
        if len(self._names) < self._limit:
            return False
        if len(self._names & self._before) >= self._limit // 2:
            self._limit *= 2  # So many are in use; their kernels are worth it.
            return False
        self._before, self._names = self._names, set()
        return True


names_of_process = Names(1024)
"""As TensorFlow's cache is one of the process."""


def note_eager_name(name: str) -> None:
    """An eager op is about to have this name for the other ranks."""
    if names_of_process.note(name):
        context.context().clear_kernel_cache()
