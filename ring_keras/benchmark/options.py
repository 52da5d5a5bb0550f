"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ring_keras.benchmark.collectives import COLLECTIVES, Collective
from ring_keras.benchmark.numpy_calls import BUFFERS
from ring_keras.benchmark.values import DTYPES

__all__ = ["Options", "parse"]

_DESCRIPTION = """\
Measures one collective on the ranks of a job, and checks its results. Run it under
a launcher: ringrun -np N ring benchmark [option ...]
"""

_EPILOG = """\
columns:
  size     bytes of the larger of one rank's input and output
  count    number of its elements
  time     microseconds of one call on the slowest rank: median, minimum and maximum
           of the samples. If a call is short, a sample is several calls in a row.
  algbw    size / median time, in GB/s
  busbw    the least that the busiest connection must carry: algbw times 2(N-1)/N for
           allreduce, (N-1)/N for allgather, reduce_scatter and alltoall, 1 for
           broadcast. Comparable across numbers of ranks.
  #wrong   number of wrong elements, on all ranks

On GPUs (--device gpu) each rank takes the GPU with the number of its local rank. The
calls of a sample are given to the device one after the other, and the end of the
sample waits for the device, as in nccl-tests. For comparison: a good allreduce of 256M
and more has a busbw of about 480 GB/s on 8 H100 joined by NVSwitch, and of 46 to 48
GB/s for each 400 Gbit/s network interface between hosts.

Rank 0 prints the results. The exit code is 1 if any element was wrong.
"""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        collective: Which one.
        sizes_bytes: Ascending.
        dtype: Name of the elements' dtype.
        op: How to reduce, if the collective does.
        iterations: Samples per size.
        warmup: Calls before them.
        buffers: Where it reads and writes, one of `BUFFERS`; "new" where there is
            no choice.
        tensorflow: Whether to call the TensorFlow op, in a `tf.function`.
        device: Where the buffers are: "cpu" or "gpu".
        json: Where to write the results besides.
    """

    collective: Collective
    sizes_bytes: tuple[int, ...]
    dtype: str
    op: str
    iterations: int
    warmup: int
    buffers: str
    tensorflow: bool
    device: str
    json: Path | None


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Reads the command line; exits with a message if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="ring benchmark",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("collective", nargs="?", choices=list(COLLECTIVES), default="allreduce")
    add(
        "--min-bytes",
        type=_size,
        default=4,
        metavar="SIZE",
        help="the first size; may end in K, M or G, powers of 1024 (default: 4)",
    )
    add(
        "--max-bytes",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="the last size (default: 64M)",
    )
    add(
        "--factor",
        type=_factor,
        default=4.0,
        help="ratio of each size to the one before (default: 4)",
    )
    add("--dtype", choices=list(DTYPES), default="float32")
    add(
        "--op",
        choices=("sum", "average", "min", "max", "product"),
        default="sum",
        help="reduce op of allreduce and reduce_scatter (default: sum)",
    )
    add(
        "--iterations",
        type=_at_least_1,
        default=20,
        help="samples for each size (default: 20)",
    )
    add(
        "--warmup",
        type=_at_least_1,
        default=5,
        help="calls before the first sample (default: 5)",
    )
    add(
        "--buffers",
        choices=list(BUFFERS),
        help="buffers of an allreduce on NumPy arrays: "
        + "; ".join(f"{name}: {text}" for name, text in BUFFERS.items())
        + " (default: separate)",
    )
    add(
        "--tensorflow",
        action="store_true",
        help="call the TensorFlow op in a tf.function, not the engine on NumPy arrays",
    )
    add(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="gpu: buffers in GPU memory, by NCCL (default: cpu)",
    )
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write all results to FILE, on rank 0",
    )
    given = parser.parse_args(arguments)
    if given.min_bytes > given.max_bytes:
        parser.error(
            "--min-bytes must not exceed --max-bytes. "
            f"Received: {given.min_bytes} and {given.max_bytes}"
        )
    collective = COLLECTIVES[given.collective]
    if collective.reduces and given.op == "average" and "int" in given.dtype:
        parser.error(f"--op average takes no integers. Received: --dtype {given.dtype}")
    on_gpu = given.device == "gpu"
    if on_gpu and given.tensorflow:
        parser.error("--device gpu is for the engine, without --tensorflow.")
    has_choice = given.collective == "allreduce" and not given.tensorflow and not on_gpu
    if given.buffers and not has_choice:
        parser.error("--buffers is for allreduce on NumPy arrays only.")
    return Options(
        collective=collective,
        sizes_bytes=_sizes(given.min_bytes, given.max_bytes, given.factor),
        dtype=given.dtype,
        op=given.op,
        iterations=given.iterations,
        warmup=given.warmup,
        buffers=given.buffers or ("separate" if has_choice else "new"),
        tensorflow=given.tensorflow,
        device=given.device,
        json=given.json,
    )


def _sizes(first: int, last: int, factor: float) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(max(sizes[-1] + 1, int(sizes[-1] * factor)))
    return tuple(sizes)


def _size(text: str) -> int:
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in ("K", "M", "G") else ""
    size = int(number.removesuffix(unit)) * _UNITS[unit]
    if size < 1:
        raise ValueError(text)
    return size


def _factor(text: str) -> float:
    factor = float(text)
    if not 1 < factor <= 1 << 30:
        raise ValueError(text)
    return factor


def _at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


# argparse puts these into "invalid ... value".
_size.__name__ = "size"
_factor.__name__ = "factor above 1"
_at_least_1.__name__ = "positive integer"
