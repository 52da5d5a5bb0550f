"""The sections of a `fit`: all that its ranks do together."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["OthersWait", "Sections"]

_Result = TypeVar("_Result")


class OthersWait(Exception):  # noqa: N818  No error.
    """Raised before a step, on every rank alike: processes wait to join."""


class Sections:
    """Lets errors pass. Those of `ring_keras.callbacks.Elastic` see to them.

    What the ranks do together comes in sections, the same on every rank, each of which
    asks all ranks for something. So where one rank ends a section, all have begun it:
    no rank is ever more than one section ahead of another.

    Args:
        require_all_there: Called before each section; raises on every rank if one has
            failed on its way there.
    """

    def __init__(self, require_all_there: Callable[[], None] = lambda: None) -> None:
        self.require_all_there = require_all_there

    def steps(self) -> int | None:
        """How many an epoch has with the ranks that there are; None: as Keras counts.

        Data may have been divided when there were other ranks.
        """
        return None

    def begin(self, section: Callable[[], None]) -> None:
        """At the end of `on_train_begin`: all callbacks have begun."""
        self.require_all_there()
        section()

    def begin_epoch(self, epoch: int, section: Callable[[], None]) -> None:
        """Before the steps of an epoch."""
        self.require_all_there()
        section()

    def execute(self, section: Callable[[Any], _Result], iterator: Any) -> _Result:
        """One execution of steps, on batches of the iterator; the ranks ask in it."""
        return section(iterator)

    def run(
        self, section: Callable[[], _Result], *, meets: bool = False
    ) -> _Result | None:
        """Any other, after the steps of an epoch, which returns a plain value.

        Args:
            section: Does it.
            meets: Whether it begins so itself.

        Returns:
            What the section does; None if other ranks have done it without this one,
            and their value cannot be had.
        """
        if not meets:
            self.require_all_there()
        return section()

    def state_was_of(self, size_before: int) -> None:
        """The state that a callback has restored is one of so many ranks."""

    def place(self) -> dict[str, Any] | None:
        """What says, beside its steps, how much of an epoch is done, before a step.

        Empty: nothing need be said. None: what is under way cannot be gone on with.
        """
        return {}

    def goes_on_from(self, epoch: int, place: Mapping[str, Any]) -> bool:
        """Whether that epoch, the first to begin, will go on from such a place.

        Raises:
            ValueError: If the place is one in other data.
        """
        return False

    def others_wait(self) -> bool:
        """Whether this rank knows of processes that wait to join."""
        return False
