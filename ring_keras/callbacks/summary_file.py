"""Writes scalars and records into the event file of a Keras callback."""

from typing import Any

import tensorflow as tf

from ring_keras.monitoring import records

__all__ = ["SummaryFile"]


class SummaryFile:
    """Any thread may use it.

    Args:
        writer: Of `tf.summary`.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(
        self,
        step: int,
        scalars: dict[str, float],
        contents: dict[str, Any],
    ) -> None:
        """Writes one event, so that TensorBoard sees it at once.

        Args:
            step: TensorBoard's.
            scalars: By their tags.
            contents: Records, by their tags.
        """
        summary = tf.compat.v1.Summary()
        for tag, value in scalars.items():
            summary.value.add(tag=tag, simple_value=value)
        for tag, content in contents.items():
            _add_record(summary, tag, records.encode_record(content))
        # Keras's callbacks leave out what does not belong to every so many steps.
        with tf.summary.record_if(True), self._writer.as_default():
            # One op for all.
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)


def _add_record(summary: Any, tag: str, content: bytes) -> None:
    value = summary.value.add(tag=tag)
    value.tensor.dtype = tf.string.as_datatype_enum
    value.tensor.tensor_shape.SetInParent()  # A scalar.
    value.tensor.string_val.append(content)
    metadata = value.metadata
    metadata.plugin_data.plugin_name = records.PLUGIN
    metadata.plugin_data.content = records.VERSION
    metadata.data_class = _TENSOR


# SummaryMetadata's enumeration, which TensorFlow exports under no name.
_TENSOR = 2
