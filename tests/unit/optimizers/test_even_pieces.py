"""How variables are divided among ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import tensorflow as tf

from ring_keras.ops.shards import Piece, Shard
from ring_keras.optimizers.even_pieces import cut_evenly, whole_pieces

Pieces = list[tuple[Piece, ...]]


def variables(shapes: Sequence[Sequence[int]]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(shape, tf.float32) for shape in shapes]


def elements(pieces: Pieces, owner: int) -> int:
    found = [its for of_variable in pieces for its in of_variable]
    return sum(piece.end - piece.begin for piece in found if piece.owner == owner)


def any_shapes(chance: random.Random) -> list[list[int]]:
    return [
        [chance.choice([0, 1, 2, 3, 7, 64, 100]) for _ in range(chance.randrange(4))]
        for _ in range(chance.randrange(6))
    ]


@pytest.mark.parametrize("seed", range(50))
def test_each_element_is_of_one_rank(seed):
    chance = random.Random(seed)
    shapes = any_shapes(chance)
    owners = chance.sample(range(9), chance.randint(1, 6))

    found = cut_evenly(variables(shapes), owners)

    assert len(found) == len(shapes)
    order = []
    for shape, pieces in zip(shapes, found, strict=True):
        assert pieces[0].begin == 0
        assert pieces[-1].end == math.prod(shape)
        for before, after in pairwise(pieces):
            assert before.end == after.begin
            assert before.end % 64 == 0  # What comes before has whole vectors.
        assert all(piece.begin < piece.end for piece in pieces) or len(pieces) == 1
        order += [owners.index(piece.owner) for piece in pieces]
    assert order == sorted(order)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 16])
@pytest.mark.parametrize(
    "shapes",
    [
        [[1_000_000, 48]],
        [[3, 3, 512, 512], [512], [512, 1000], [1000]],
        [[1000, 1000]] * 10,
        [[64, 64], [64]] * 300,
        [[10], [30_000_000], [10]],
    ],
    ids=str,
)
def test_no_rank_has_more_than_its_share(shapes, ranks):
    found = cut_evenly(variables(shapes), range(ranks))

    share = sum(map(math.prod, shapes)) / ranks
    for rank in range(ranks):
        assert elements(found, rank) == pytest.approx(share, rel=0.05)
    cuts = sum(len(pieces) - 1 for pieces in found)
    assert cuts <= ranks - 1


def test_a_large_variable_is_cut_between_rows():
    (pieces,) = cut_evenly(variables([[1001, 64]]), range(3))

    shard = Shard((1001, 64), pieces)
    rows = [shard.rows_of(piece) for piece in pieces]
    assert rows[0].start == 0
    assert rows[-1].stop == 1001
    assert [shard.shape_of(piece)[1:] for piece in pieces] == [(64,)] * 3


def test_a_cut_is_made_between_variables_where_that_is_near():
    found = cut_evenly(variables([[1000], [990], [1010], [1000]]), range(2))

    assert [[piece.owner for piece in pieces] for pieces in found] == [
        [0],
        [0],
        [1],
        [1],
    ]


def test_whole_variables_go_to_whoever_has_least():
    found = whole_pieces(variables([[10], [40], [30]]), [5, 6])

    assert found == [(Piece(6, 0, 10),), (Piece(5, 0, 40),), (Piece(6, 0, 30),)]
