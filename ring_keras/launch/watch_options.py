"""Options of `ringrun` that say how a job is watched."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ring_keras.launch.event_log import require_writable
from ring_keras.launch.metrics import MetricsOptions, check_metrics
from ring_keras.launch.output import say

__all__ = ["WatchOptions", "add_options", "check", "merge_timeline", "refuse"]


@dataclass(frozen=True)
class WatchOptions:
    """What the launcher tells of a job besides its output.

    Attributes:
        status: Whether a line below the output says how fast the ranks train.
        event_log: Gets what happens, if not None.
        metrics: Where what ranks report is served, if not None.
    """

    status: bool
    event_log: Path | None
    metrics: MetricsOptions | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them to ringrun's."""
    add = parser.add_argument
    add(
        "--no-status",
        action="store_true",
        help="hide the status line below the output, which says how many ranks have "
        "joined, and how fast they train. It is shown on a terminal only",
    )
    add(
        "--event-log",
        type=Path,
        metavar="FILE",
        help="append events (ranks that start, end or fail, stalls, checkpoints) to "
        "FILE, as lines of JSON",
    )
    add(
        "--timeline",
        "--timeline-filename",  # horovodrun's name for it.
        type=Path,
        metavar="FILE",
        help="write all ranks' collectives to FILE, in a directory that all hosts "
        "share. The format is Chrome's if FILE ends in .json, else Perfetto's",
    )
    add(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="serve the ranks' metrics for Prometheus on this port; 0: any free port",
    )
    add(
        "--metrics-host",
        metavar="ADDRESS",
        help="address on which the metrics are served (default: 127.0.0.1)",
    )
    add(
        "--metrics-token-file",
        type=Path,
        metavar="FILE",
        help="file with the bearer token that Prometheus must send",
    )


def merge_timeline(path: Path) -> None:
    """Makes one file of what the ranks have written beside it."""
    command = [sys.executable, "-m", "ring_keras.monitoring.timeline", str(path)]
    subprocess.run(command, check=False)


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> WatchOptions:
    """What was asked for; ends the process, with a message, if it cannot be had.

    Who takes a job over, maybe on another host, does without, and says so.
    """
    metrics, event_log = None, options.event_log
    try:
        metrics = check_metrics(
            options.metrics_host, options.metrics_port, options.metrics_token_file
        )
    except ValueError as error:
        refuse(parser, options, str(error), "metrics are not served any more")
    if options.timeline is not None:
        try:
            _check_timeline(options.timeline)
        except ValueError as error:
            parser.error(str(error))
    if event_log is not None:
        try:
            require_writable(event_log)
        except OSError as error:
            why = f"--event-log {event_log}: {error.strerror}"
            refuse(parser, options, why, "events are not written any more")
            event_log = None
    return WatchOptions(
        status=not options.no_status and os.isatty(1) and os.isatty(2),
        event_log=event_log,
        metrics=metrics,
    )


def refuse(
    parser: argparse.ArgumentParser, options: argparse.Namespace, why: str, without: str
) -> None:
    """Ends the process, with a message; a job that was taken over goes on without."""
    if options.tenure is None:
        parser.error(why)
    say(f"{why}; the job goes on, and {without}")


def _check_timeline(path: Path) -> None:
    if path.suffix != ".json" and importlib.util.find_spec("perfetto") is None:
        raise ValueError(
            f"--timeline {path} would be in Perfetto's format, which needs the package "
            "perfetto: pip install 'ring-keras[timeline]', where ringrun runs. Or give "
            "a name that ends in .json, for Chrome's"
        )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port, not {text}")
    return int(text)
