"""Whether a rank had examples of its own in its last step."""

import tensorflow as tf

from ring_keras.keras_internals.graphs import new_scalar

__all__ = ["OwnExamples"]


class OwnExamples:
    """Of the steps of one kind of one model, which TensorFlow may have traced.

    A step without any runs on a row of zeros: what it returns says nothing of the data.
    """

    def __init__(self) -> None:
        # 1 if there were; made by the first step that may have none. Of a type that
        # every device has, since XLA takes no variables of another one.
        self._had: tf.Variable | None = None

    def note(self, count: tf.Tensor) -> None:
        """In a step: how many examples it has."""
        if self._had is None:
            self._had = _new_variable()
        self._had.assign(tf.cast(count > 0, tf.float32))

    def begin(self) -> None:
        """An epoch, or an evaluation, begins; its steps may note nothing."""
        if self._had is not None:
            self._had.assign(1.0)

    def had(self) -> bool:
        """Whether the last one had."""
        return self._had is None or bool(self._had > 0)


def _new_variable() -> tf.Variable:
    """Of 1; also where a step is traced that has been traced before."""
    if tf.executing_eagerly():
        return tf.Variable(1.0, trainable=False)
    made = new_scalar("ring_keras_had_examples", tf.compat.v1.get_default_graph())
    with tf.init_scope():
        made.assign(1.0)
    return made
