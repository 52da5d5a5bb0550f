"""The format of a timeline, by the name of its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ring_keras.monitoring.timeline.chrome_file import write_chrome
from ring_keras.monitoring.timeline.merged import RankTimeline
from ring_keras.monitoring.timeline.perfetto_file import (
    require_perfetto,
    write_perfetto,
)

__all__ = ["obstacle_to", "write_timeline"]


def obstacle_to(path: Path) -> str:
    """Why `write_timeline` could not make such a file here; empty: it could."""
    if path.suffix != ".json":
        try:
            require_perfetto()
        except Exception as error:  # Also of a protobuf that does not fit.
            return str(error)
    return ""


def write_timeline(path: Path, ranks: Sequence[RankTimeline]) -> None:
    """Writes Chrome's format to `.json`, else Perfetto's."""
    write = write_chrome if path.suffix == ".json" else write_perfetto
    write(path, ranks)
