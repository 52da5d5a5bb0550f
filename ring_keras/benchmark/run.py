"""Runs the benchmark on this rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ring_keras import _native
from ring_keras.benchmark.job import describe_job, join
from ring_keras.benchmark.numpy_calls import BUFFERS, numpy_call
from ring_keras.benchmark.options import Options, parse
from ring_keras.benchmark.report import Row, header, write_json
from ring_keras.benchmark.values import DTYPES, Array, tolerance
from ring_keras.timing import time_call

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every size; returns the exit code."""
    options = parse(arguments)
    rank, size = join(options.tensorflow)
    job = describe_job(size)
    how = "by the TensorFlow op in a tf.function"
    if not options.tensorflow:
        how = f"of NumPy arrays, {BUFFERS[options.buffers]}"
    title = f"{options.collective.name} {how}"
    if rank == 0:
        print(header(title, job), flush=True)
    rows = []
    for nbytes in options.sizes_bytes:
        rows.append(_measure(options, nbytes, rank, size))
        if rank == 0:
            print(rows[-1].line(), flush=True)
    if rank == 0 and options.json is not None:
        write_json(options.json, title, job, rows)
    _native.barrier("benchmark/end")
    _native.shutdown("the benchmark ended")
    return int(any(row.wrong for row in rows))


def _measure(options: Options, nbytes: int, rank: int, size: int) -> Row:
    collective, dtype, op = options.collective, options.dtype, options.op
    itemsize = DTYPES[dtype].itemsize
    count = collective.count(nbytes, itemsize, size)
    values = collective.input(rank, size, count, dtype)

    def make_call() -> Callable[[], object]:
        if not options.tensorflow:
            return numpy_call(collective.name, values, op, options.buffers)
        # Imported only here: it takes seconds.
        from ring_keras.benchmark.tensorflow_calls import tensorflow_call

        return tensorflow_call(collective.name, values, op)

    timing = time_call(make_call(), samples=options.iterations, warmup=options.warmup)
    wrong = _count_wrong(
        np.asarray(make_call()()),
        collective.output(rank, size, count, dtype, op),
        tolerance(size, dtype, op) if collective.reduces else 0.0,
    )
    return Row(
        collective=collective.name,
        nbytes=count * itemsize,
        count=count,
        dtype=dtype,
        op=op if collective.reduces else "none",
        buffers="tensors" if options.tensorflow else options.buffers,
        timing=timing,
        bus_factor=collective.bus_factor(size),
        wrong=wrong,
    )


def _count_wrong(got: Array, expected: Array, relative: float) -> int:
    """How many elements of all ranks are wrong: a collective."""
    if got.shape != expected.shape:
        wrong = expected.size
    elif relative == 0:
        wrong = int(np.count_nonzero(got != expected))
    else:
        exact = expected.astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact)
        # Written so that a NaN is wrong.
        wrong = expected.size - int(np.count_nonzero(error <= relative * exact))
    total = _native.allreduce(np.array([wrong]), "sum", "benchmark/wrong")
    return int(total[0])
