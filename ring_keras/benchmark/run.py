"""Runs the benchmark on this rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ring_keras import _native
from ring_keras.autotune.timing import time_call
from ring_keras.benchmark.device_calls import ANCHORS, DeviceCalls
from ring_keras.benchmark.job import describe_job, join
from ring_keras.benchmark.numpy_calls import BUFFERS, numpy_call
from ring_keras.benchmark.options import Options, parse
from ring_keras.benchmark.report import Row, header, write_json
from ring_keras.benchmark.values import DTYPES, Array, tolerance

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every size; returns the exit code."""
    options = parse(arguments)
    rank, size = join(options.tensorflow)
    job = describe_job(size)
    title = f"{options.collective.name} {_how(options)}"
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


def _how(options: Options) -> str:
    if options.tensorflow:
        return "by the TensorFlow op in a tf.function"
    if options.device == "gpu":
        return f"in GPU memory, by NCCL. {ANCHORS}"
    return f"of NumPy arrays, {BUFFERS[options.buffers]}"


def _measure(options: Options, nbytes: int, rank: int, size: int) -> Row:
    collective, dtype, op = options.collective, options.dtype, options.op
    itemsize = DTYPES[dtype].itemsize
    count = collective.count(nbytes, itemsize, size)
    values = collective.input(rank, size, count, dtype)

    time_it = functools.partial(
        time_call, samples=options.iterations, warmup=options.warmup
    )
    if options.device == "gpu":
        output = collective.output(rank, size, count, dtype, op)
        calls = DeviceCalls(collective.name, values, op, output.shape)
        timing = time_it(calls.submit, finish=calls.finish)
        got = calls.result()
    else:
        make_call = _host_calls(options, values)
        timing = time_it(make_call())
        got = np.asarray(make_call()())
    wrong = _count_wrong(
        got,
        collective.output(rank, size, count, dtype, op),
        tolerance(size, dtype, op) if collective.reduces else 0.0,
    )
    return Row(
        collective=collective.name,
        nbytes=count * itemsize,
        count=count,
        dtype=dtype,
        op=op if collective.reduces else "none",
        buffers=_buffers(options),
        timing=timing,
        bus_factor=collective.bus_factor(size),
        wrong=wrong,
    )


def _host_calls(options: Options, values: Array) -> Callable[[], Callable[[], object]]:
    """Makes a function that calls the collective, on inputs of its own."""
    name, op = options.collective.name, options.op
    if not options.tensorflow:
        return lambda: numpy_call(name, values, op, options.buffers)
    # Imported only here: it takes seconds.
    from ring_keras.benchmark.tensorflow_calls import tensorflow_call

    return lambda: tensorflow_call(name, values, op)


def _buffers(options: Options) -> str:
    if options.tensorflow:
        return "tensors"
    return "gpu" if options.device == "gpu" else options.buffers


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
