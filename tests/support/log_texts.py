"""What ring_keras says through absl's log, as it says warnings of Python."""

from __future__ import annotations

import logging
from types import TracebackType

from absl import logging as absl_logging


class LogTexts(logging.Handler):
    """A context, which gives the list of what is said in it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "ring_keras" in record.getMessage():
            self.texts.append(record.getMessage())

    def __enter__(self) -> list[str]:
        absl_logging.get_absl_logger().addHandler(self)
        return self.texts

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        absl_logging.get_absl_logger().removeHandler(self)
