"""What every rank checks, on the stand-in's GPUs and on real ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ring_keras import _native
from support.engine_only import rank_and_size
from support.gpu_calls import assert_close, gpu
from support.tensors import SHAPES, random_values, reduced, small_values

# Those that NCCL computes with.
INTEGERS = ["uint8", "int8", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
# Those that it only moves, too.
MOVED = [*INTEGERS, *FLOATS, "uint16", "int16", "bool"]


def check_allreduce(dtype: str) -> None:
    rank, size = rank_and_size()
    ops = ["sum", "min", "max", "product"]
    if dtype in FLOATS:
        ops.append("average")
    for shape, op in itertools.product(SHAPES, ops):
        values = [small_values(other, shape, dtype) for other in range(size)]
        for in_place in (False, True):
            result = gpu().allreduce([values[rank]], op=op, in_place=in_place).result
            if op == "average":
                # Shares are rounded before the sum, as NCCL's own average does.
                step = 2.0 ** {"float16": -9, "bfloat16": -6}.get(dtype, -20)
                exactly = np.mean(np.stack(values).astype(np.float64), axis=0)
                assert_close(result, np.asarray(exactly), step)
            else:
                np.testing.assert_array_equal(result, reduced(values, op))


def check_group(dtype: str) -> None:
    """Hundreds of small tensors and a large one, all at once."""
    rank, size = rank_and_size()
    shapes = [(count % 37, 3) for count in range(300)] + [(5_000_000,), (), (0,)]
    values = [
        [
            small_values(other + index, shape, dtype)
            for index, shape in enumerate(shapes)
        ]
        for other in range(size)
    ]
    pending = gpu().allreduce(values[rank], name="group")
    for index, result in enumerate(pending.results()):
        one = [values[other][index] for other in range(size)]
        np.testing.assert_array_equal(result, reduced(one, "sum"))


def check_large(in_place: bool) -> None:
    rank, size = rank_and_size()
    values = [small_values(other, (6_000_001,), "float32") for other in range(size)]
    pending = gpu().allreduce([values[rank]], in_place=in_place, name="large")
    np.testing.assert_array_equal(pending.result, reduced(values, "sum"))


def check_scales() -> None:
    rank, size = rank_and_size()
    values = [small_values(other, (1000,), "float32") for other in range(size)]
    total = reduced(values, "sum")
    for arrays in ([values[rank]], [values[rank], values[rank][:7]]):
        results = gpu().allreduce(arrays, prescale=0.5, postscale=4.0).results()
        np.testing.assert_array_equal(results[0], total * 2)
    # Each rank has a factor of its own, of which some are 1.
    rows = [small_values(other, (2 * size, 5), "float32") for other in range(size)]
    prescale = 2.0 if rank == 0 else 1.0
    result = gpu().reduce_scatter(rows[rank], prescale=prescale).result
    expected = reduced([rows[0] * 2, *rows[1:]], "sum")[2 * rank : 2 * rank + 2]
    np.testing.assert_array_equal(result, expected)
    # Integers are cut after each factor, as on the host.
    ones = np.full((10,), 3, np.int32)
    result = gpu().allreduce([ones], prescale=0.5, postscale=1.5).result
    np.testing.assert_array_equal(result, np.full(10, int(size * 1.5)))


def check_weights() -> None:
    rank, size = rank_and_size()
    values = [small_values(other, (1000,), "float32") for other in range(size)]
    weights = [float(other) for other in range(size)]
    result = (
        gpu()
        .allreduce([values[rank], values[rank][:5]], op="average", weight=weights[rank])
        .results()[0]
    )
    if sum(weights) == 0:  # One rank, of weight 0.
        np.testing.assert_array_equal(result, np.zeros(1000, np.float32))
    else:
        assert_close(result, np.average(np.stack(values), 0, weights), 1e-6)


def check_wire(wire_dtype: str) -> None:
    rank, size = rank_and_size()
    exact = [small_values(other, (4099,), "float32") for other in range(size)]
    arrays = [exact[rank], exact[rank][:10]]
    for op in ("sum", "min", "max", "product"):
        results = gpu().allreduce(arrays, op=op, wire_dtype=wire_dtype).results()
        np.testing.assert_array_equal(results[0], reduced(exact, op))
        np.testing.assert_array_equal(results[1], reduced(exact, op)[:10])
    average = gpu().allreduce(arrays, op="average", wire_dtype=wire_dtype).results()[0]
    exactly = np.mean(exact, axis=0, dtype=np.float64)
    assert_close(average, exactly, 2.0 ** {"float16": -9, "bfloat16": -6}[wire_dtype])

    # Summed in float32: one rounding on the way there, one on the way back.
    values = [random_values(other, 4099, "float32") for other in range(size)]
    result = gpu().allreduce([values[rank]], wire_dtype=wire_dtype).result
    exactly = np.sum(values, axis=0, dtype=np.float64)
    step = 2.0 ** {"float16": -11, "bfloat16": -8}[wire_dtype]
    largest = np.sum(np.abs(values), axis=0, dtype=np.float64)
    assert np.all(np.abs(result - exactly) <= 2.01 * step * largest)


def check_within_a_host() -> None:
    values = np.full(1000, 1 + 2.0**-20, np.float32)
    result = gpu().allreduce([values], op="average", wire_dtype="bfloat16").result
    np.testing.assert_array_equal(result, values)


def check_nan() -> None:
    """What NCCL's least and largest make of a NaN is left to it; see docs/gpu.md."""
    rank, size = rank_and_size()
    values = np.ones(5, np.float32)
    if rank == size - 1:
        values[3] = np.nan
    for op in ("sum", "average", "product"):
        for wire_dtype in (None, "bfloat16"):
            result = gpu().allreduce([values], op=op, wire_dtype=wire_dtype).result
            np.testing.assert_array_equal(np.isnan(result), [False] * 3 + [True, False])


def check_same_bits() -> None:
    rank, _ = rank_and_size()
    values = random_values(rank, 100_003, "float32")
    result = gpu().allreduce([values], op="average").result
    all_results = _native.allgather(result.reshape(1, -1), "bits")
    assert all((row == all_results[0]).all() for row in all_results)


def check_allgather(dtype: str) -> None:
    rank, size = rank_and_size()
    for rows in ([2] * size, [(other * 3) % 4 for other in range(size)], [0] * size):
        for inner in ((), (3,), (2, 2)):
            values = [
                small_values(other, (rows[other], *inner), dtype)
                for other in range(size)
            ]
            result = gpu().allgather(values[rank]).result
            np.testing.assert_array_equal(result, np.concatenate(values))


def check_broadcast(dtype: str) -> None:
    rank, size = rank_and_size()
    for root in range(size):
        arrays = [
            [
                small_values(other + index, shape, dtype)
                for index, shape in enumerate(SHAPES)
            ]
            for other in range(size)
        ]
        results = gpu().broadcast(arrays[rank], root).results()
        for result, expected in zip(results, arrays[root], strict=True):
            np.testing.assert_array_equal(result, expected)


def check_reduce_scatter(dtype: str) -> None:
    rank, size = rank_and_size()
    for rows, op in itertools.product((size, 2 * size + 1, 1), ("sum", "max")):
        values = [small_values(other, (rows, 3), dtype) for other in range(size)]
        whole = reduced(values, op)
        # The first ranks get one row more where they do not divide.
        counts = [rows // size + (other < rows % size) for other in range(size)]
        begin = sum(counts[:rank])
        result = gpu().reduce_scatter(values[rank], op=op).result
        np.testing.assert_array_equal(result, whole[begin : begin + counts[rank]])


def check_alltoall(dtype: str) -> None:
    rank, size = rank_and_size()
    for splits in (
        None,
        [[(one + other) % 3 for other in range(size)] for one in range(size)],
    ):
        mine = [2] * size if splits is None else splits[rank]
        table = [[2] * size] * size if splits is None else splits
        values = [
            small_values(other, (sum(table[other]), 2), dtype) for other in range(size)
        ]
        pending = gpu().alltoall(values[rank], splits=None if splits is None else mine)
        operation = pending.operation
        expected = []
        for other in range(size):
            begin = sum(table[other][:rank])
            expected.append(values[other][begin : begin + table[other][rank]])
        np.testing.assert_array_equal(pending.result, np.concatenate(expected))
        assert operation.received_splits() == [len(part) for part in expected]


def check_refused_types() -> None:
    for dtype in ("uint16", "int16", "bool"):
        pending = gpu().allreduce([small_values(0, (4,), dtype)], name="refused")
        with pytest.raises(ValueError, match=dtype):
            pending.operation.wait()
        pending.free()


def check_process_sets() -> None:
    rank, size = rank_and_size()
    upper = _native.add_communicator(range(1, size))
    odd = None if size < 4 else _native.add_communicator([1, 3])
    for members, communicator in ((range(1, size), upper), ([1, 3], odd)):
        if communicator is None or rank not in members:
            continue
        # Both at once, and the whole job between them.
        value = np.full((5,), rank, np.float32)
        pending = gpu().allreduce([value], communicator_id=communicator)
        assert pending.result[0] == sum(members)
        gathered = gpu().allgather(value[:1], communicator_id=communicator).result
        np.testing.assert_array_equal(gathered, list(members))
        root = len(members) - 1
        sent = gpu().broadcast([value], root, communicator_id=communicator).result
        assert sent[0] == members[root]
    everyone = gpu().allreduce([np.ones(3, np.float32)]).result
    assert everyone[0] == size
    # One goes while the job's collective is under way.
    ones = np.ones(100_000, np.float32)
    for _ in range(3):
        passing = _native.add_communicator(range(size - 1))
        if rank < size - 1:
            alone = gpu().allreduce([ones], communicator_id=passing)
            assert (alone.result == size - 1).all()
        pending = gpu().allreduce([ones])
        _native.remove_communicator(passing)
        assert (pending.result == size).all()
    if odd is not None:
        _native.remove_communicator(odd)
    _native.remove_communicator(upper)
