"""The lists of gradients are those of the models they are named after."""

import math

from benchmarks.ranks.agent import read_shapes


def test_resnet50() -> None:
    shapes = read_shapes("resnet50")

    assert len(shapes) == 161
    assert sum(map(math.prod, shapes)) == 25_557_032
    assert shapes[0] == (64, 3, 7, 7)
    assert shapes[-1] == (1000,)


def test_transformer() -> None:
    shapes = read_shapes("transformer")

    assert len(shapes) == 70
    assert 4 * sum(map(math.prod, shapes)) == 29_185_280
