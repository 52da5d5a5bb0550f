"""What a loop commits, goes back to, and gives to those that join."""

import abc
from collections.abc import Callable, Sequence

import numpy as np

from ring_keras import _native
from ring_keras.job.job import current_job
from ring_keras.lifecycle.elastic_launcher import note_state, others_wait

__all__ = ["HostsUpdatedInterrupt", "State"]


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name.
    """Raised on every rank alike: others wait to join. `run` takes care of it.

    Examples:
        In a loop that handles the change itself:

        >>> state = ring.elastic.ObjectState(step=0)
        >>> try:
        ...     state.check_host_updates()
        ... except ring.elastic.HostsUpdatedInterrupt:
        ...     print("others wait to join")

    Args:
        skip_sync: Whether the state is the same on all ranks that will be there.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("others wait to join the job")
        self.skip_sync = skip_sync


class State(abc.ABC):
    """Base class of states; counts commits, so ranks know which rank is ahead.

    Examples:
        >>> class Counter(ring.elastic.State):
        ...     count = saved = 0
        ...     def save(self):
        ...         self.saved = self.count
        ...     def restore(self):
        ...         self.count = self.saved
        ...     def take_from(self, source):
        ...         self.count = ring.broadcast_object(self.count, source)
        >>> state = Counter()
        >>> state.count = 5
        >>> state.commit()
        >>> state.saved
        5
    """

    def __init__(self) -> None:
        self._commits = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Calls these functions after each change, before the state is synchronized.

        Args:
            callbacks: For example, to set a learning rate by the new `ring.size()`.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed, and this one has joined anew."""
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Copies the state in memory, and lets new ranks join.

        It is a collective: every rank calls it after the same step.

        Raises:
            HostsUpdatedInterrupt: On every rank, if others wait to join.
            PeerLostError: If a rank died or left.
        """
        self.save()
        # From here on this step is done, whoever is lost.
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Lets new ranks join; a collective.

        Raises:
            HostsUpdatedInterrupt: On every rank, if others wait to join.
            PeerLostError: If a rank died or left.
        """
        # Ranks hear of it at different times, and must act together.
        own = np.array([[others_wait()]], np.int64)
        if _native.allgather(own, "elastic/others_wait").any():
            raise HostsUpdatedInterrupt

    def sync(self) -> None:
        """Gives every rank the state of the rank with the most commits; a collective.

        If several ranks have the most commits, the lowest of them is used. A rank that
        has just started never has more commits than the others.

        Raises:
            PeerLostError: If a rank died or left; `restore` undoes what has been taken.
        """
        own = np.array([self._progress()], np.int64)
        everyones = _native.allgather(own, "elastic/commits").tolist()
        source = everyones.index(max(everyones))
        current_job().others_train = False
        self.take_from(source)
        self.save()
        self._commits = everyones[source][0]
        note_state()

    def _must_sync(self) -> bool:
        """Whether ranks cannot do without, though nobody has taken a step since."""
        return False

    def _progress(self) -> list[int]:
        """How far this rank has come, the most important number first."""
        return [self._commits]

    @abc.abstractmethod
    def save(self) -> None:
        """Keeps a copy of the state in memory."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Returns to the last copy."""

    @abc.abstractmethod
    def take_from(self, source: int) -> None:
        """Takes the state of that rank; a collective."""
