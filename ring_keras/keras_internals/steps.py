"""Where Keras goes through the steps of an epoch, before callbacks hear of each."""

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ring_keras.keras_internals.names import EPOCH_STEPS

__all__ = ["ask_before_steps", "ask_to_the_last", "has_steps", "set_steps"]


def has_steps(epoch_iterator: Any) -> bool:
    """Whether `set_steps` has anything to replace in this release of Keras."""
    return hasattr(epoch_iterator, EPOCH_STEPS)


def set_steps(
    epoch_iterator: Any, steps: Callable[[], Iterator[tuple[Any, ...]]]
) -> None:
    """Has `fit` go through these steps in each epoch.

    Args:
        epoch_iterator: That of the call.
        steps: Yields for each execution its first step, its last one, and the
            iterator that has its batches.
    """
    vars(epoch_iterator)[EPOCH_STEPS] = steps


def ask_before_steps(
    epoch_iterator: Any, ask: Callable[[Iterator[Any]], Iterator[Any] | None]
) -> None:
    """Has `fit` ask before each execution, of which no callback has heard yet.

    Args:
        epoch_iterator: That of the call.
        ask: Given the iterator that has the execution's batches. Returns the one that
            Keras is to take them from; None, to end the epoch's steps.
    """
    of = weakref.ref(epoch_iterator)  # Else it would live on, with its data.

    def steps() -> Iterator[tuple[Any, ...]]:
        asked = of()
        # Older releases do not say which step is the last one.
        for *numbers, batches in getattr(type(asked), EPOCH_STEPS)(asked):
            batches = ask(batches)
            if batches is None:
                return
            yield (*numbers, batches)

    set_steps(epoch_iterator, steps)


def ask_to_the_last(
    epoch_iterator: Any, ask: Callable[[Iterator[Any]], Iterator[Any] | None]
) -> None:
    """The same, where an epoch may have more steps than this rank has batches for.

    Args:
        epoch_iterator: That of the call, which does not say how many steps an epoch
            has.
        ask: As above. Past the end of the data it is given an iterator without any.
    """
    of = weakref.ref(epoch_iterator)

    def steps() -> Iterator[tuple[Any, ...]]:
        asked = of()
        assert asked is not None
        own = getattr(type(asked), EPOCH_STEPS)(asked)
        count = asked.steps_per_execution
        width = 0
        for first in itertools.count(0, count):
            # Without a batch Keras has steps, too: of data of unknown length.
            found = next(own, None)
            batches = ask(iter(()) if found is None else found[-1])
            if batches is None:
                break
            if found is not None:
                width = len(found) - 1
            # Older releases do not say which step is the last one.
            yield (*(first, first + count - 1)[:width], batches)
        if found is not None:
            own.close()
            asked.data_adapter.on_epoch_end()

    set_steps(epoch_iterator, steps)
