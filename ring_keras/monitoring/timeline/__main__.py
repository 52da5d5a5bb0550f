"""`ring timeline FILE`: puts the ranks' parts together."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ring_keras.monitoring.timeline.drift import with_drift
from ring_keras.monitoring.timeline.formats import obstacle_to, write_timeline
from ring_keras.monitoring.timeline.part_file import find_parts, read_part

_VIEWER = "https://ui.perfetto.dev"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes FILE, and removes the parts."""
    parser = argparse.ArgumentParser(
        prog="ring timeline",
        description="Joins FILE.rank0, FILE.rank1, ... into one timeline, FILE. The "
        "ranks of a job with RING_KERAS_TIMELINE=FILE write these parts.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    path: Path = parser.parse_args(arguments).file
    paths = find_parts(path)
    parts = [part for path in paths for part in read_part(path)]
    if not paths and path.is_file():
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
        print(
            f"no parts {path}.rank* are left to join: {path} was written at {at}. Open "
            f"it at {_VIEWER}",
            file=sys.stderr,
        )
        return 0
    problem = obstacle_to(path) if parts else _lack_of_parts(path)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    write_timeline(path, with_drift(parts))
    for part in paths:
        part.unlink()
    print(
        f"wrote the collectives of {len(paths)} ranks to {path}. Open it at {_VIEWER}",
        file=sys.stderr,
    )
    return 0


def _lack_of_parts(path: Path) -> str:
    whole = path.with_suffix("")
    if find_parts(whole):  # It is one of them.
        return f"expected the whole timeline's name: ring timeline {whole}"
    return (
        f"expected {path}.rank0, {path}.rank1, ..., found none. Ranks with "
        f"RING_KERAS_TIMELINE={path} write them"
    )


if __name__ == "__main__":
    sys.exit(main())
