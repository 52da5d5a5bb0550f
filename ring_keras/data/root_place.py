"""Where the training of the root stands, from which all ranks of a `fit` go on."""

import keras
import numpy as np

from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import has_peers
from ring_keras.keras_internals import calls
from ring_keras.training.distributed_models import process_set_of
from ring_keras.training.root_rank import root_of
from ring_keras.training.saved_place import SavedPlace

__all__ = ["RootPlace"]

# In place of one: no ranks.
_NOWHERE = SavedPlace(0, 0, None, 0)


class RootPlace:
    """As each rank of the `fit` that is calling a callback learns of it.

    Args:
        model: That is trained.
        given: The root, if the user has named one.

    Raises:
        ValueError: If the ranks would take the place of one and the state of another.
    """

    def __init__(self, model: keras.Model, given: int | None) -> None:
        self._model = model
        self._process_set = process_set_of(model)
        listed = calls.calling_callback_list()
        callbacks = [] if listed is None else listed.callbacks
        self._root_rank = root_of(callbacks, self._process_set.ranks)
        if given not in (None, self._root_rank) and has_peers(self._process_set):
            raise ValueError(
                "[RK512] "
                f"ring_keras.data.Resume would continue where rank {given} is, with "
                f"weights and state of rank {self._root_rank}, which all ranks of this "
                "fit() take. Leave root_rank out of Resume. "
                f"Received: root_rank={given}"
            )

    def steps(self) -> int:
        """The root's number of steps; collective."""
        optimizers = internals.training_optimizers(self._model)
        steps = [internals.steps_done(optimizer) for optimizer in optimizers] or [0]
        message = self._from_root(
            np.array([min(steps), max(steps)], np.int64), "resume/steps"
        )
        if message[0] != message[1]:
            raise ValueError(
                "[RK512] "
                "ring_keras.data.Resume reads off the optimizers how many steps a "
                "model has taken, but its optimizers have taken different numbers, "
                f"from {message[0]} to {message[1]}. Go on at the beginning of an "
                "epoch, without Resume."
            )
        return int(message[1])

    def saved(self, ours: SavedPlace | None) -> SavedPlace | None:
        """What the root's checkpoint says; None if there is none. Collective."""
        message = self._from_root((ours or _NOWHERE).message(), "resume/place")
        found = SavedPlace.of_message(message)
        return None if found == _NOWHERE else found

    def _from_root(self, message: np.ndarray, name: str) -> np.ndarray:
        if not has_peers(self._process_set):
            return message
        root = self._process_set.position_of(self._root_rank)
        return _native.broadcast(
            message, root, name, self._process_set.communicator_id()
        )
