"""`ring timeline FILE`: puts the ranks' parts together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ring_keras.monitoring.timeline.drift import with_drift
from ring_keras.monitoring.timeline.formats import obstacle_to, write_timeline
from ring_keras.monitoring.timeline.part_file import find_parts, read_part


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
    problem = obstacle_to(path) if parts else f"there are no parts {path}.rank*"
    if problem:
        print(problem, file=sys.stderr)
        return 1
    write_timeline(path, with_drift(parts))
    for part in paths:
        part.unlink()
    print(f"wrote the collectives of {len(paths)} ranks to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
