"""Variables that ranks have updated piece by piece, and take from each other."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, run_ranks

import ring_keras as ring
from ring_keras import _native
from ring_keras import keras_internals as internals
from ring_keras.job.process_set import global_process_set
from ring_keras.ops.shards import Piece, Shard
from ring_keras.ops.share_variables import share_variables

# Large ones, which ranks show each other, and small ones; with and without elements.
SHAPES = ((3, 7), (300, 100), (), (0, 4), (70_001,), (64, 1024))


def values(owner: int, variable: int, use: int, shape: tuple[int, ...]) -> Any:
    count = int(np.prod(shape))
    return (np.arange(count) % 251 + 1000 * owner + 10 * variable + use).reshape(shape)


def sharded(size: int) -> list[Shard]:
    """Some whole, with owners of their own; large ones cut, at odd places, too."""
    shards = []
    for number, shape in enumerate(SHAPES):
        count = int(np.prod(shape))
        if count < 10_000:
            shards.append(Shard(shape, (Piece(number % size, 0, count),)))
            continue
        ends = [count * (rank + 1) // size + (rank + 1 < size) for rank in range(size)]
        owners = [(rank + number) % size for rank in range(size)]
        pieces = zip(owners, [0, *ends[:-1]], ends, strict=True)
        shards.append(Shard(shape, tuple(Piece(*piece) for piece in pieces)))
    return shards


def expected(shards: list[Shard], number: int, use: int) -> Any:
    shape = SHAPES[number]
    found = np.zeros(int(np.prod(shape)))
    for owner, begin, end in shards[number].pieces:
        found[begin:end] = values(owner, number, use, shape).reshape(-1)[begin:end]
    return found.reshape(shape)


def check(kind: str, dtype: str) -> None:
    size, rank = ring.size(), ring.rank()
    shards = sharded(size)
    variables = [tf.Variable(tf.zeros(shape, dtype)) for shape in SHAPES]
    # Updated apart, as by an optimizer that knows no pieces: the second one's.
    piece = shards[1].piece_of(rank)
    assert piece is not None
    apart = tf.Variable(tf.zeros(shards[1].shape_of(piece), dtype))

    def share() -> None:
        share_variables(
            variables,
            shards,
            {internals.variable_key(variables[1]): apart},
            name=f"share/{kind}/{dtype}",
            process_set=global_process_set,
        )

    run = {"eager": share, "graph": tf.function(share)}.get(kind)
    if run is None:
        run = tf.function(share, jit_compile=True)
    for use in range(4):
        for number, variable in enumerate(variables):
            variable.assign(values(rank, number, use, SHAPES[number]))
        own = shards[1].cut(values(rank, 1, use, SHAPES[1]), piece)
        apart.assign(own)
        variables[1].assign(tf.zeros_like(variables[1]))
        read = [variable.value() for variable in variables]
        before = [one.numpy() for one in read]
        run()
        for number, variable in enumerate(variables):
            np.testing.assert_array_equal(
                variable.numpy(),
                expected(shards, number, use).astype(dtype),
                err_msg=f"variable {number}, use {use}",
            )
        # Whoever has read a variable keeps what it was.
        for one, value in zip(read, before, strict=True):
            np.testing.assert_array_equal(one.numpy(), value)


@pytest.mark.parametrize(
    "kind", ["eager", "graph", pytest.param("xla", marks=pytest.mark.slow)]
)
def test_every_rank_gets_each_owners_piece(kind: str, ranks: RankPool) -> None:
    ranks.run(check, args=(kind, "float32"))


@pytest.mark.slow
def test_of_16_bits(ranks: RankPool) -> None:
    ranks.run(check, args=("graph", "float16"))


def in_shared_memory() -> set[str]:
    ring.init()
    check("graph", "float32")
    return {
        one["algorithm"]
        for one in _native.recent_collectives()
        if one["kind"] == "broadcast"
    }


def test_large_ones_are_copied_once() -> None:
    """Wherever their values have come from: NumPy, here."""
    assert run_ranks(in_shared_memory, 2) == [{"shared_tensors"}] * 2


def traced() -> list[list[str]]:
    """Of each of three operations, which others must have ended before it."""
    ring.init()
    variables = [tf.Variable(tf.zeros([4])) for _ in range(3)]

    @tf.function  # type: ignore[untyped-decorator]
    def share() -> None:
        for variable in variables:
            share_variables(
                [variable],
                [Shard((4,), (Piece(0, 0, 4),))],
                {},
                name="share/order",
                process_set=global_process_set,
            )

    graph = share.get_concrete_function().graph
    operations = [
        one for one in graph.get_operations() if one.type == "RingKerasShareVariables"
    ]
    return [
        [before.name for before in one.control_inputs if before in operations]
        + [one.name]
        for one in operations
    ]


def test_those_of_a_graph_have_an_order() -> None:
    """Else two optimizers' variables would meet each other's under one name."""
    ((first,), second, third) = run_ranks(traced, 1)[0]
    assert second[0] == first
    assert third[0] == second[1]


def read_meanwhile(directory: str) -> None:
    """Rank 1 comes when rank 0 has read the variable into which its piece will go."""
    ring.init()
    has_read = Path(directory) / "has_read"
    count = 100_000
    variable = tf.Variable(tf.fill([count], 1.0 + ring.rank()))
    shard = Shard((count,), (Piece(0, 0, count // 2), Piece(1, count // 2, count)))

    def share() -> None:
        share_variables(
            [variable], [shard], {}, name="share/read", process_set=global_process_set
        )

    deadline = time.monotonic() + 60
    if ring.rank() == 1:
        while not has_read.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        share()
        return
    thread = threading.Thread(target=share)
    thread.start()
    while not _native.long_waits(0, 0.0)[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    held = variable.value()
    backup = tf.Variable(variable)
    has_read.touch()
    thread.join()

    expected = np.repeat(np.float32([1, 2]), count // 2)
    np.testing.assert_array_equal(variable.numpy(), expected)
    np.testing.assert_array_equal(held.numpy(), np.ones(count))
    np.testing.assert_array_equal(backup.numpy(), np.ones(count))


def test_what_is_read_meanwhile_stays(tmp_path: Path) -> None:
    run_ranks(read_meanwhile, 2, args=(str(tmp_path),))


def other_ways(where: str) -> list[float]:
    """Only rank 0 has the variables' memory in the collective."""
    ring.init()
    shard = Shard((10, 30), (Piece(0, 0, 130), Piece(1, 130, 300)))
    variable = tf.Variable(tf.fill([10, 30], 1.0 + ring.rank()))

    def share() -> None:
        share_variables(
            [variable],
            [shard],
            {},
            name="share/ways",
            process_set=global_process_set,
            in_place=where == "xla" or ring.rank() == 0,
        )

    if where == "xla":
        share = tf.function(share, jit_compile=ring.rank() == 1)
    share()
    return [float(one) for one in variable.numpy().reshape(-1)[[0, 129, 130, 299]]]


@pytest.mark.parametrize("where", ["eager", "xla"])
def test_ranks_that_share_in_different_ways_meet(where: str) -> None:
    assert run_ranks(other_ways, 2, args=(where,)) == [[1, 1, 2, 2]] * 2


def differ() -> None:
    ring.init()
    rank = ring.rank()
    variable = tf.Variable(tf.zeros([100 + rank]))
    shard = Shard((100 + rank,), (Piece(0, 0, 100 + rank),))
    with pytest.raises(ring.RankMismatchError, match=r"shape|100"):
        share_variables(
            [variable],
            [shard],
            {},
            name="share/differ",
            process_set=global_process_set,
        )
    # What cannot take part on one rank fails on all.
    ends = 100 + 5 * rank
    with pytest.raises(Exception, match="ends at 105"):
        share_variables(
            [tf.Variable(tf.zeros([100]))],
            [Shard((100,), (Piece(0, 0, ends),))],
            {},
            name="share/cannot",
            process_set=global_process_set,
        )


def test_ranks_that_differ_say_so() -> None:
    run_ranks(differ, 2)
