"""Saves stages with a Keras model in them where Spark saves its own."""

from __future__ import annotations

from typing import Any

from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReader,
    MLWriter,
)

__all__ = ["StageReader", "StageWriter"]

_MODEL = "model"
_KNOWN = "known"


class StageWriter(MLWriter):
    """Writes parameters as JSON, and the model as the bytes of a `.keras` file.

    Args:
        stage: With `saved_parts`.
    """

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:  # noqa: N802  Spark ML's name.
        """Called by `save`."""
        params, known, content = self._stage.saved_parts()
        DefaultParamsWriter.saveMetadata(
            self._stage, path, self.sparkSession, {_KNOWN: known}, params
        )
        frame = self.sparkSession.createDataFrame([(content,)], "content binary")
        frame.coalesce(1).write.parquet(f"{path}/{_MODEL}")


class StageReader(MLReader):
    """Reads what a `StageWriter` has written.

    Args:
        stage_class: With `take_saved`.
    """

    def __init__(self, stage_class: type) -> None:
        super().__init__()
        self._class = stage_class

    def load(self, path: str) -> Any:
        """The stage that was saved there."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        (row,) = self.sparkSession.read.parquet(f"{path}/{_MODEL}").collect()
        stage = self._class()
        stage._resetUid(metadata["uid"])
        stage.take_saved(metadata["paramMap"], metadata[_KNOWN], bytes(row["content"]))
        return stage
