"""`ring`: one command for the tools beside ringrun."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from ring_keras._version import __version__
from ring_keras.config import Config, ConfigError, scheduled_rank
from ring_keras.launch.rank_counts import guess

__all__ = ["describe_tools", "main"]

_USAGE_ERROR = 2


@dataclass(frozen=True)
class _Tool:
    """One of them; its module is imported when it is asked for.

    Attributes:
        module: Has `main`, which takes what the user has written.
        summary: What for, and how it is started; fits in a line.
        first: Goes before what the user has written.
    """

    module: str
    summary: str
    first: str | None = None

    def run(self, arguments: Sequence[str]) -> int | None:
        """Returns the exit code; None is 0."""
        before = [] if self.first is None else [self.first]
        main = importlib.import_module(self.module).main
        code: int | None = main([*before, *arguments])
        return code


_TOOLS = {
    "verify": _Tool(
        "ring_keras.verify.command",
        "do ranks train as one process? ringrun -np 2 ring verify X.py",
    ),
    "benchmark": _Tool(
        "ring_keras.benchmark.run",
        "how fast are collectives here? ringrun -np 2 ring benchmark",
    ),
    "analyze": _Tool(
        "ring_keras.monitoring.analyze.__main__",
        "why does a job hang? Reads its ranks' traces: ring analyze DIR",
    ),
    "timeline": _Tool(
        "ring_keras.monitoring.timeline.__main__",
        "joins the ranks' timelines into one file: ring timeline FILE",
    ),
    "checkpoint": _Tool(
        "ring_keras.callbacks.checkpoint_command",
        "makes one file of a checkpoint: ring checkpoint DIR --into FILE",
    ),
    "data-service": _Tool(
        "ring_keras.data.service.__main__",
        "prepares data for a job: ringrun -np 4 ring data-service FILE",
    ),
    "doctor": _Tool(
        "ring_keras.launch.cli",
        "can this machine run a job? ring doctor -np 2",
        first="--check-build",
    ),
    "explain": _Tool(
        "ring_keras.launch.explain",
        "what does an error mean, and how is it fixed? ring explain RK302",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int | None:
    """Runs a tool; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="ring",
        usage="ring TOOL [argument ...]",
        description="Tools for jobs of ring_keras. ringrun starts such jobs.\n\n"
        f"{describe_tools()}\n\n`ring TOOL --help` lists a tool's options.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"ring_keras {__version__}"
    )
    add = parser.add_argument
    add("tool", nargs="?", metavar="TOOL", help=argparse.SUPPRESS)
    add("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.tool is None:
        parser.print_help()
        return _USAGE_ERROR
    if options.tool not in _TOOLS:
        parser.error(
            f"there is no tool {options.tool} among {', '.join(_TOOLS)}"
            + guess(options.tool, list(_TOOLS))
        )
    if options.words[:1] in (["--help"], ["-h"]) and _is_after_first_rank():
        return 0  # Another rank of the job says it.
    return _TOOLS[options.tool].run(options.words)


def _is_after_first_rank() -> bool:
    """Whether a launcher has started it, as any rank but the first."""
    try:
        return (scheduled_rank() or Config.from_environment()).rank > 0
    except ConfigError:
        return False


def describe_tools() -> str:
    """A line for each tool."""
    return "\n".join(f"  {name:<14}{tool.summary}" for name, tool in _TOOLS.items())
