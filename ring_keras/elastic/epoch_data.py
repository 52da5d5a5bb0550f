"""What a rank reads of an epoch, however often the ranks change in it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ring_keras import keras_internals as internals
from ring_keras.job.topology import rank, size
from ring_keras.ops.redivision import Division, Redivision, redivision_of

__all__ = ["EpochData", "divide_anew"]


class EpochData:
    """The steps of an epoch of one call of `fit`.

    The items of an epoch have one order, that of all ranks. Step by step they are taken
    from its beginning, by each rank in turn one. So what is left after some steps is
    given by one number, and can be divided among other ranks.

    Args:
        redivision: Of the dataset that `fit` was given.
        epoch_iterator: Keras's, which goes through these steps from now on.
        steps_per_execution: How many Keras runs at once.
        is_over: Says whether the ranks have ended the epoch's steps early.
    """

    def __init__(
        self,
        redivision: Redivision,
        epoch_iterator: Any,
        steps_per_execution: int,
        is_over: Callable[[], bool],
    ) -> None:
        self._redivision = redivision
        self._batch_size = redivision.batch_size()
        self._steps_per_execution = steps_per_execution
        self._is_over = is_over
        # The user's own, as long as nobody was lost.
        self._parts = {redivision.division: internals.dataset_of(epoch_iterator)}
        self._division = redivision.division
        self._batches = 0
        self._done = self._kept = 0
        self._running = 0
        self.executions = 0
        """How many of this epoch are kept."""
        self.iterator: Any = None
        """Over what this rank has left."""
        internals.set_steps(epoch_iterator, self._steps)

    def steps(self) -> int:
        """How many an epoch has with the ranks that there are."""
        division = Division(rank(), size())
        dataset = self._parts.get(division) or self._redivision.make(division)
        return int(dataset.cardinality())

    def divide(self, start: int = 0, executions: int = 0) -> None:
        """Divides an epoch among the ranks that there are.

        Args:
            start: How many of its items are done.
            executions: In how many executions that was.
        """
        division = Division(rank(), size(), start)
        dataset = self._parts.get(division) or self._redivision.make(division)
        if not start:  # It serves other epochs too.
            self._parts = {division: dataset}
        self._division, self.executions = division, executions
        self._done = self._kept = self._running = 0
        self._batches = int(dataset.cardinality())
        self.iterator = iter(dataset)

    def left(self) -> int:
        """How many batches this rank, and each other, has left."""
        return self._batches - self._done

    def note_execution(self) -> None:
        """Another one is done."""
        self._done += min(self._steps_per_execution, self.left())
        self._running += 1

    def keep(self) -> None:
        """What is done will not be done again."""
        self._kept = self._done
        self.executions += self._running
        self._running = 0

    def place(self) -> dict[str, Any]:
        """What is kept, in plain values, to go on from with any number of ranks.

        `steps_per_epoch` is None where steps do not say how much is done: the ranks
        were others when the epoch began.
        """
        is_whole = not self._division.start
        return {
            "items": self.items(),
            "executions": self.executions,
            "steps_per_epoch": self._batches if is_whole else None,
            "steps_left": self._batches - self._kept,
            "data": list(self._redivision.description),
        }

    def require_place_in(self, epoch: int, place: Mapping[str, Any]) -> None:
        """Raises if the place is one in other data: it would be of other items.

        Args:
            epoch: That is under way there.
            place: What `place` has returned in an earlier job.

        Raises:
            ValueError: If it is.
        """
        if "data" not in place:  # Of a job before places had that.
            return
        ours, its = ", ".join(self._redivision.description), ", ".join(place["data"])
        if ours != its:
            raise ValueError(
                "[RK683] ring_keras.callbacks.Elastic cannot continue in epoch "
                f"{epoch} (the first is 0): {place['items']} of its items were trained "
                f"on when training was saved, of data with {its}, and fit() has data "
                f"with {ours}, of which those are others. Give fit() the data that it "
                "had, with the same seed. To train on others, begin anew: in another "
                "directory, with a model into which you have loaded the weights."
            )

    def items(self) -> int:
        """How many of all that the epoch has are kept."""
        if self._kept >= self._batches:
            return self._redivision.count
        # Of those who were there: by now there may be others.
        done = self._kept * self._batch_size * self._division.size
        return self._division.start + done

    def _steps(self) -> Iterator[tuple[int, int, Any]]:
        count = self._steps_per_execution
        while self.left() and not self._is_over():
            first = (self.executions + self._running) * count
            yield first, first + count - 1, self.iterator


def divide_anew(epoch_iterator: Any) -> None:
    """Divides data among the ranks that there are, before they are evaluated.

    Those that `ring_keras.data.shard` has not divided stay as they are.
    """
    redivision = redivision_of(internals.dataset_of(epoch_iterator))
    division = Division(rank(), size())
    if redivision is not None and redivision.division != division:
        internals.set_dataset(epoch_iterator, redivision.make(division))
