"""Gradients averaged over the ranks, for training loops of one's own."""

import functools
from typing import Any

import tensorflow as tf

from ring_keras.communicator import ProcessSet, global_process_set
from ring_keras.compression import Compression
from ring_keras.errors import translated
from ring_keras.optimizers.gradient_reducer import GradientReducer
from ring_keras.optimizers.step_scope import current_step
from ring_keras.reduce_op import ReduceOp

__all__ = ["DistributedGradientTape"]


@functools.cache
def _reducer(
    op: ReduceOp, process_set: ProcessSet, compression: Compression
) -> GradientReducer:
    """Shared by the tapes of all steps: the ranks agree on a plan only once."""
    return GradientReducer(op, process_set, None, compression)


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` is the average over all ranks.

    Use it in place of the tape it wraps, as context manager too:

    ```python
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = compute_loss(batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    ```

    Inside a Keras `train_step`, ranks count by their number of examples;
    elsewhere all count the same.

    Args:
        tape: The tape that records. Its other methods can be called here.
        op: `AVERAGE` or `SUM`.
        compression: How float32 gradients travel between hosts; the same on
            every rank.
        process_set: Ranks taking part. Defaults to all.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        op: ReduceOp | str = ReduceOp.AVERAGE,
        *,
        compression: Compression | str = Compression.none,
        process_set: ProcessSet | None = None,
    ) -> None:
        self._tape = tape
        self._reducer = _reducer(
            ReduceOp(op), process_set or global_process_set, Compression(compression)
        )

    def __enter__(self) -> "DistributedGradientTape":
        self._tape.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._tape.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @translated()
    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes gradients and reduces them over the ranks.

        Args:
            target: As for `tf.GradientTape.gradient`, like the rest.
            sources: Tensors, variables, or a structure of them.
            *args: Passed on.
            **kwargs: Passed on.

        Returns:
            A structure like `sources`, the same on every rank. None where
            `target` does not depend on the source, as without this class.

        Raises:
            RankMismatchError: If the ranks' gradients differ in shape, dtype or
                number.
        """
        gradients = self._tape.gradient(target, sources, *args, **kwargs)
        names = [
            str(getattr(source, "path", None) or getattr(source, "name", "source"))
            for source in tf.nest.flatten(sources)
        ]
        flat = tf.nest.flatten(gradients)
        reduced = self._reducer.reduce(flat, names, self._reducer.step_weight())
        step = current_step()
        if step is not None:
            step.tape_gradients.update((id(g), g) for g in reduced)
        return tf.nest.pack_sequence_as(gradients, reduced)
