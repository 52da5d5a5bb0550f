"""What the benchmark takes for right, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ring_keras.benchmark.collectives import COLLECTIVES
from ring_keras.benchmark.values import DTYPES, filled, reduced, tolerance


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("allreduce", {1: 0, 2: 1, 4: 1.5}),
        ("allgather", {1: 0, 2: 0.5, 4: 0.75}),
        ("reduce_scatter", {1: 0, 2: 0.5, 4: 0.75}),
        ("alltoall", {1: 0, 2: 0.5, 4: 0.75}),
        ("broadcast", {1: 1, 2: 1, 4: 1}),
    ],
)
def test_bus_factors(name: str, factors: dict[int, float]) -> None:
    got = {size: COLLECTIVES[name].bus_factor(size) for size in factors}

    assert got == factors


def test_a_divided_buffer_has_equal_parts_and_none_is_empty() -> None:
    allgather, allreduce = COLLECTIVES["allgather"], COLLECTIVES["allreduce"]

    assert allgather.count(4096, 4, 3) == 1023
    assert allgather.count(1, 4, 3) == 3
    assert allreduce.count(4096, 4, 3) == 1024
    assert allreduce.count(1, 4, 3) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_are_numpys(dtype: str) -> None:
    inputs = np.stack([filled(rank, 20, dtype) for rank in range(3)])

    assert inputs.dtype == DTYPES[dtype]
    for op, combine in [("sum", np.sum), ("max", np.max), ("product", np.prod)]:
        got = reduced(3, 20, dtype, op)
        assert got.dtype == DTYPES[dtype]
        np.testing.assert_array_equal(
            got.astype(float), combine(inputs.astype(float), axis=0)
        )


def test_integers_wrap_around() -> None:
    assert int(reduced(200, 1, "int8", "sum")[0]) == (200 + 200 // 7 + 1) - 256


def test_what_each_rank_of_two_must_get() -> None:
    twos_of_rank_0, twos_of_rank_1 = [0, 7], [6]  # Every other element is a one.

    def output(name: str, rank: int) -> list[int]:
        values = COLLECTIVES[name].output(rank, 2, 8, "int32", "sum")
        return [int(value) for value in values]

    first = [2 if i in twos_of_rank_0 else 1 for i in range(8)]
    second = [2 if i in twos_of_rank_1 else 1 for i in range(8)]
    total = [a + b for a, b in zip(first, second, strict=True)]
    assert output("broadcast", 1) == first
    assert output("allreduce", 1) == total
    assert output("reduce_scatter", 1) == total[4:]
    assert output("alltoall", 1) == first[4:] + second[4:]
    # Their inputs have half the elements.
    assert output("allgather", 0) == first[:4] + second[:4]


def test_only_inexact_reductions_may_be_off() -> None:
    assert tolerance(4, "float32", "sum") == 0
    assert tolerance(4, "int8", "product") == 0
    assert 0 < tolerance(3, "float32", "average") < 1e-6
    # Beyond 256, bfloat16 has not every whole number.
    assert tolerance(300, "bfloat16", "sum") > 0
