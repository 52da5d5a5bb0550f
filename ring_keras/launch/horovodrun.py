"""What `horovodrun` took, so that its command lines work with `ringrun`.

Options that mean something here become ringrun's own, or variables of the
ranks. Those that tune what this engine does not have are taken, and ringrun
says that they do nothing. Those that ask for something that is not there end
ringrun, with what to do instead.
"""

from __future__ import annotations

import argparse
from typing import Any

__all__ = [
    "LOG_LEVELS",
    "add_options",
    "chosen_variables",
    "notes_of",
]

LOG_LEVELS = {"trace": "debug", "fatal": "error"}
"""Horovod's levels that have another name here."""

_NEVER_S = "1e9"
_OWN_LAUNCHER = "ringrun starts the ranks itself; leave it out"

_REFUSED = {
    "--config-file": (1, "give its settings as options"),
    "--mpi": (0, _OWN_LAUNCHER),
    "--jsrun": (0, _OWN_LAUNCHER),
    "--mpi-args": (1, _OWN_LAUNCHER),
    "--binding-args": (1, "use --bind-to cores"),
}

_NO_CYCLES = "there are no cycles, and nobody coordinates"
_OWN_ALGORITHMS = "the engine picks an algorithm by size and hosts"
_OWN_AUTOTUNE = "--autotune measures in its own manner, see --print-env"

_IGNORED = {
    "--disable-cache": (0, "no checks are cached"),
    "--cycle-time-ms": (1, _NO_CYCLES),
    "--timeline-mark-cycles": (0, _NO_CYCLES),
    "--cache-capacity": (1, _NO_CYCLES),
    "--hierarchical-allreduce --no-hierarchical-allreduce": (0, _OWN_ALGORITHMS),
    "--hierarchical-allgather --no-hierarchical-allgather": (0, _OWN_ALGORITHMS),
    "--torus-allreduce --no-torus-allreduce": (0, _OWN_ALGORITHMS),
    "--autotune-log-file": (1, _OWN_AUTOTUNE),
    "--autotune-warmup-samples": (1, _OWN_AUTOTUNE),
    "--autotune-steps-per-sample": (1, _OWN_AUTOTUNE),
    "--autotune-bayes-opt-max-samples": (1, _OWN_AUTOTUNE),
    "--autotune-gaussian-process-noise": (1, _OWN_AUTOTUNE),
    "--gloo": (0, "there is one engine"),
    "--mpi-threads-disable": (0, "there is no MPI in it"),
    "--num-nccl-streams": (1, "NCCL has a stream per process set"),
    "--thread-affinity": (1, "use --bind-to cores"),
    "--log-without-timestamp": (0, "the engine's messages have none"),
}


class _Refused(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string} is not supported: {self.const}")


class _Ignored(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        note = f"{option_string} does nothing: {self.const}"
        setattr(namespace, self.dest, [*notes_of(namespace), note])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds what is not ringrun's anyway."""
    group = parser.add_argument_group(
        "horovodrun's options",
        "ringrun also accepts the other options of horovodrun, and says what it does "
        "with each of them.",
    )
    group.add_argument(
        "--fusion-threshold-mb",
        type=_whole_number,
        metavar="MB",
        help="size of gradient buckets; 0: a bucket for each gradient: "
        "RING_KERAS_BUCKET_SIZE_BYTES",
    )
    group.add_argument(
        "--autotune",
        action="store_true",
        help="measure the best thresholds for this job: RING_KERAS_AUTOTUNE",
    )
    group.add_argument(
        "--stall-check-warning-time-seconds",
        dest="stall_warning",
        metavar="SECONDS",
        help="RING_KERAS_STALL_TIMEOUT_S",
    )
    group.add_argument(
        "--no-stall-check",
        dest="stall_warning",
        action="store_const",
        const=_NEVER_S,
        help="do not report which ranks a collective waits for",
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        "--gloo-timeout-seconds",
        dest="collective_timeout",
        metavar="SECONDS",
        help="RING_KERAS_COLLECTIVE_TIMEOUT_S, unless 0",
    )
    group.add_argument(
        "--tcp",
        dest="transport",
        action="store_const",
        const="tcp",
        help="--transport tcp",
    )
    for table, action in ((_REFUSED, _Refused), (_IGNORED, _Ignored)):
        for names, (count, reason) in table.items():
            group.add_argument(
                *names.split(),
                dest="notes",
                action=action,
                nargs=count,
                const=reason,
                default=[],
                help=argparse.SUPPRESS,
            )


def notes_of(options: argparse.Namespace) -> list[str]:
    """Which of the given options do nothing, and why."""
    notes: list[str] = options.notes
    return notes


def chosen_variables(options: argparse.Namespace) -> dict[str, str]:
    """What the options mean for the ranks' environment."""
    chosen = {}
    if options.fusion_threshold_mb is not None:
        nbytes = max(1, options.fusion_threshold_mb << 20)
        chosen["RING_KERAS_BUCKET_SIZE_BYTES"] = str(nbytes)
    if options.autotune:
        chosen["RING_KERAS_AUTOTUNE"] = "1"
    if options.stall_warning is not None:
        chosen["RING_KERAS_STALL_TIMEOUT_S"] = options.stall_warning
    if options.collective_timeout not in (None, "0"):
        chosen["RING_KERAS_COLLECTIVE_TIMEOUT_S"] = options.collective_timeout
    return chosen


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(text)
