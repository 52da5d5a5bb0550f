"""A model's predictions, by all ranks."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras.errors import RankMismatchError
from ring_keras.inference.share import Share
from ring_keras.job.process_set import ProcessSet, global_process_set

__all__ = ["predict"]


def predict(
    model: keras.Model,
    x: Any,
    *,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    root_rank: int | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Returns what `model.predict(x)` does; each rank computes a part of it.

    It is a collective. Each rank predicts consecutive batches, the same ones that one
    process would have. The results are concatenated in the order of the data:

    ```python
    model = keras.models.load_model("model.keras")
    probabilities = ring.predict(model, images, batch_size=256)
    ```

    Examples:
        >>> ring.predict(model, x, batch_size=8, verbose=0).shape
        (32, 1)

    Args:
        model: The same on every rank.
        x: All of the data, the same on every rank.

            - Arrays, in tuples, lists and dicts as the model takes them.
            - A batched `tf.data.Dataset` that ends and is not shuffled. Targets are
              ignored. A dataset of unknown cardinality is read once more to count its
              batches; `tf.data.experimental.assert_cardinality` avoids that.
            - A `keras.utils.PyDataset`.
        batch_size: The batch size for arrays; 32 by default.
        verbose: As in Keras; the first rank shows its own progress.
        root_rank: The rank of the whole job that gets the predictions. By default every
            rank gets them.
        process_set: Ranks that take part. Defaults to all.

    Returns:
        NumPy arrays, a row for each row of the data, structured as the model's
        outputs. None if another rank is the root.

    Raises:
        ValueError: If the data are empty, infinite or shuffled, if the model has layers
            with `stateful=True`, or if an output is ragged, or does not consist of
            numbers.
        TypeError: If `x` is of another kind.
        RankMismatchError: If ranks have different data or weights, or one fails.
        PeerLostError: If a rank died or left.
    """
    process_set = process_set or global_process_set
    root = None if root_rank is None else process_set.position_of(root_rank)
    share = Share.of("predict", process_set, x, batch_size=batch_size)

    def run() -> tuple[Any, list[Any]]:
        outputs = model.predict(**share.arguments, verbose=share.verbose(verbose))
        arrays = tf.nest.flatten(outputs)
        for array in arrays:
            if not isinstance(array, np.ndarray) or array.dtype == object:
                kind = getattr(array, "dtype", None)
                raise ValueError(
                    "ring_keras.predict puts arrays of numbers together. Received: an "
                    f"output that is a {type(array).__name__} of {kind}. Call "
                    "model.predict() on one rank."
                )
        return outputs, [[str(a.dtype), list(a.shape[1:])] for a in arrays]

    outputs, everyones = share.work(model, run)
    for rank, theirs in zip(process_set.ranks, everyones, strict=True):
        if theirs != everyones[0]:
            raise RankMismatchError(
                "[RK323] "
                "ring_keras.predict: outputs have other shapes in other batches: rank "
                f"{process_set.ranks[0]} has {everyones[0]}, rank {rank} has {theirs}. "
                "Pad all batches alike, or call model.predict() on one rank."
            )
    if share.is_empty:
        outputs = tf.nest.map_structure(lambda array: array[:0], outputs)
    arrays = [
        _gathered(array, f"predict/{index}", root, process_set)
        for index, array in enumerate(tf.nest.flatten(outputs))
    ]
    is_receiver = root is None or root == process_set.rank()
    return tf.nest.pack_sequence_as(outputs, arrays) if is_receiver else None


def _gathered(
    array: np.ndarray[Any, Any], name: str, root: int | None, process_set: ProcessSet
) -> np.ndarray[Any, Any]:
    """The rows of all ranks; of none where another one is the root."""
    communicator_id = process_set.communicator_id()
    if root is None:
        return _native.allgather(array, name, communicator_id)
    rows = [0] * process_set.size()
    rows[root] = len(array)
    return _native.alltoall(array, rows, name, communicator_id)[0]
