"""What all ranks measure, beside what Keras's own callback for TensorBoard writes."""

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.summary_file import SummaryFile
from ring_keras.callbacks.tensorboard import TensorBoard

__all__ = ["BesideTensorBoard"]


class BesideTensorBoard(TensorBoard):
    """Adds to the file of another callback, which goes on as if this were not there.

    The first in the list of every rank: when training ends, it has written before the
    other one closes the file, and waits for the ranks where all wait.

    Args:
        board: On the rank that writes, the callback whose file it is; None on others.
        update_freq: That callback's, on every rank.
    """

    def __init__(
        self, board: keras.callbacks.TensorBoard | None, update_freq: int | str
    ) -> None:
        super().__init__(update_freq=update_freq)
        self._board = board

    def _file(self) -> SummaryFile | None:
        if self._board is None:
            return None
        return SummaryFile(internals.train_writer(self._board))

    def _find_writer(self) -> bool:
        """What Keras writes is the other one's."""
        return False
