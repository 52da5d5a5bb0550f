"""Ends ranks in the middle of a program."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras

__all__ = ["Dies", "Sends"]


class Sends(keras.callbacks.Callback):
    """SIGTERM, as a scheduler's, after some executions; None: never."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self._at = at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._at is None:
            return
        self._at -= 1
        if self._at == 0:
            os.kill(os.getpid(), signal.SIGTERM)


class Dies(keras.callbacks.Callback):
    """Kills this process after some executions; notes before which step."""

    def __init__(self, at: int, note: Path) -> None:
        super().__init__()
        self._at = at
        self._note = note
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._at -= 1
        if self._at < 0:
            self._note.write_text(f"{self._epoch} {batch}")
            os.kill(os.getpid(), signal.SIGKILL)
