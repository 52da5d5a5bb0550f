"""`ring analyze DIR`: why a job stands still, or broke."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ring_keras.monitoring.analyze.report import describe_ranks
from ring_keras.monitoring.analyze.trace_file import read_traces
from ring_keras.monitoring.analyze.verdict import explain


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one sentence, then what each rank was doing."""
    parser = argparse.ArgumentParser(
        prog="ring analyze",
        description="Says why a job hangs, or why it failed. Reads the files that its "
        "ranks have written to RING_KERAS_TRACE_DIR.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument(
        "--last",
        type=int,
        default=5,
        metavar="N",
        help="show the last N collectives of each rank",
    )
    options = parser.parse_args(arguments)
    traces = read_traces(options.directory)
    if not traces:
        print(
            f"expected files named rank*.trace in {options.directory}, found none. Set "
            "RING_KERAS_TRACE_DIR to the same directory for every rank.",
            file=sys.stderr,
        )
        return 1
    print(explain(traces))
    print()
    print(describe_ranks(traces, options.last))
    return 0


if __name__ == "__main__":
    sys.exit(main())
