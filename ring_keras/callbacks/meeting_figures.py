"""What the ranks of a model that train apart have met for, for TensorBoard and logs."""

import keras

from ring_keras.monitoring.meetings import Apart, Meeting
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.training.distributed_fit import DistributedFit

__all__ = ["MeetingFigures"]


class MeetingFigures:
    """Looks at the meetings of a model from now on, to the end of the `fit`.

    To be made, and asked, by all ranks between the same meetings.
    """

    def __init__(self, model: keras.Model) -> None:
        self._optimizers = meeting_optimizers(model)
        for optimizer in self._optimizers:
            optimizer.log.watch(True)
        self._counts = [optimizer.log.count for optimizer in self._optimizers]

    def take(self, fit: DistributedFit | None = None) -> list[Apart]:
        """Of each optimizer, what there is new; empty if the ranks do not train apart.

        Args:
            fit: To know when the next meeting is; None: nobody asks.
        """
        found = []
        for number, optimizer in enumerate(self._optimizers):
            log = optimizer.log
            # In top-k the largest values stand for the average.
            is_average = optimizer.wire != "top-k"
            meetings = tuple(
                Meeting(
                    optimizer.meeting_nbytes(one.fragment),
                    one.amount,
                    one.change_square if is_average else None,
                    one.average_square,
                    one.update_norm,
                )
                for one in log.since(self._counts[number])
            )
            self._counts[number] = log.count
            left = None
            if fit is not None:
                left = optimizer.updates_to_meeting(fit.batches_to_epoch_end())
            found.append(Apart(meetings, left))
        return found
