"""The state from which a later job begins, when too few ranks are left."""

from typing import Any

from ring_keras.elastic.fit_news import Backup
from ring_keras.elastic.fit_state import Copy, FitState
from ring_keras.job.topology import rank

__all__ = ["BackupOfSteps"]


class BackupOfSteps:
    """Has the state of a place in the steps, where a later job goes on with it.

    What follows an epoch's steps, a later job does anew. So the backup has none of what
    callbacks do to a model meanwhile: `SwapEMAWeights` has averages in it as long as it
    is validated.

    Args:
        backup: Keeps a state beyond the job; None: nothing is to be kept.
        state: That of the `fit`.
    """

    def __init__(self, backup: Backup | None, state: FitState) -> None:
        self._backup = backup
        self._state = state
        self._copy: Copy | None = None
        self.place: dict[str, Any] | None = None
        """That of the state which it has; None as long as it has none."""

    def note(self, place: dict[str, Any]) -> None:
        """The last copy of the state is one of this place."""
        if self._backup is not None:
            self._copy, self.place = self._state.latest(), place

    def take_from(self, source: int, place: dict[str, Any]) -> None:
        """Takes what that rank has; a collective. The variables stay as they are.

        Args:
            source: The rank.
            place: Its place.
        """
        if rank() == source and self._copy is not None:
            self._state.go_back_to(self._copy)
        copy = self._state.common_copy(source)
        self._state.restore()
        if self._backup is not None:
            self._copy, self.place = copy, place

    def save(self) -> None:
        """By every rank that is left, none of which knows of others."""
        if self._backup is not None and self._copy is not None:
            assert self.place is not None
            self._state.go_back_to(self._copy)
            self._backup.save(self.place)

    def restore(self) -> dict[str, Any] | None:
        """The place of an earlier job; None if there is no backup."""
        return None if self._backup is None else self._backup.restore()
