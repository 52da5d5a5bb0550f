"""What is in TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from ring_keras.monitoring import records


def event_files(folder: Path) -> list[Path]:
    """From the oldest: a name has a second, its host, process and number there."""

    def numbers(path: Path) -> list[int]:
        return [int(part) for part in path.name.split(".") if part.isdigit()]

    return sorted(folder.glob("events*"), key=numbers)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scalars by tag, and the records by kind, of all event files in a folder."""
    scalars: dict[str, Any] = {}
    contents: dict[str, Any] = {}
    for file in event_files(folder):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    [text] = value.tensor.string_val
                    content = records.decode_record(text)
                    kind = records.kind_of_tag(value.tag)
                    contents.setdefault(kind, []).append((event.step, content))
                elif value.HasField("simple_value"):
                    scalars.setdefault(value.tag, []).append(
                        (event.step, value.simple_value)
                    )
    return scalars, contents
