"""Every collective on tensors in GPU memory, against numpy."""

from __future__ import annotations

import pytest
from support import RankPool, gpu_cases
from support.variants import variants


@pytest.mark.parametrize("dtype", [*gpu_cases.INTEGERS, *gpu_cases.FLOATS])
def test_allreduce(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_allreduce, args=(dtype,))


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        pytest.param("bfloat16", marks=pytest.mark.slow),
        pytest.param("int64", marks=pytest.mark.slow),
    ],
)
def test_hundreds_of_small_tensors_and_a_large_one(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_group, args=(dtype,))


@pytest.mark.parametrize("in_place", variants([True], [False]))
def test_a_large_tensor(ranks: RankPool, in_place: bool) -> None:
    ranks.run(gpu_cases.check_large, args=(in_place,))


def test_scales(ranks: RankPool) -> None:
    ranks.run(gpu_cases.check_scales)


def test_weights(ranks: RankPool) -> None:
    ranks.run(gpu_cases.check_weights)


@pytest.mark.parametrize("wire_dtype", ["float16", "bfloat16"])
def test_wire_dtypes(ranks_apart: RankPool, wire_dtype: str) -> None:
    ranks_apart.run(gpu_cases.check_wire, args=(wire_dtype,))


def test_nothing_is_rounded_within_a_host(ranks: RankPool) -> None:
    ranks.run(gpu_cases.check_within_a_host)


def test_nan(ranks: RankPool) -> None:
    ranks.run(gpu_cases.check_nan)


def test_every_rank_gets_the_same_bits(peers: RankPool) -> None:
    peers.run(gpu_cases.check_same_bits)


@pytest.mark.parametrize("dtype", gpu_cases.MOVED)
def test_allgather(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_allgather, args=(dtype,))


@pytest.mark.parametrize("dtype", gpu_cases.MOVED)
def test_broadcast(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_broadcast, args=(dtype,))


@pytest.mark.parametrize("dtype", [*gpu_cases.INTEGERS, *gpu_cases.FLOATS])
def test_reduce_scatter(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_reduce_scatter, args=(dtype,))


@pytest.mark.parametrize("dtype", gpu_cases.MOVED)
def test_alltoall(ranks: RankPool, dtype: str) -> None:
    ranks.run(gpu_cases.check_alltoall, args=(dtype,))


def test_types_that_nccl_does_not_compute_with(ranks: RankPool) -> None:
    ranks.run(gpu_cases.check_refused_types)


def test_process_sets(peers: RankPool) -> None:
    peers.run(gpu_cases.check_process_sets)
