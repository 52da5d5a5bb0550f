"""Which lists of names have the same variables in another order."""

import pytest

from ring_keras.ops.common_order import crossed

DENSE = [f"m/dense_{number}/kernel" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("first", "second", "position"),
    [
        (["a", "b", "c"], ["a", "c", "b"], 1),
        (["a", "b", "c"], ["b", "c", "a"], 0),
        (DENSE, [DENSE[0], *DENSE[:0:-1]], 1),
        # Beside other numbers of Keras, and in models that have such themselves.
        (["dense/k", "age", "job"], ["dense_1/k", "job", "age"], 1),
        (["m/age/k", "m/job/k"], ["m_1/job/k", "m_1/age/k"], 0),
        (["v:0", "w:0"], ["w:0", "v:0"], 0),
    ],
)
def test_exchanged_names_are_found(first, second, position):
    assert crossed(first, second) == position
    assert crossed(second, first) == position


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DENSE, DENSE),
        (DENSE[:-1], DENSE[1:]),
        (["m/dense/kernel", *DENSE[:-1]], DENSE),
        ([DENSE[1], DENSE[0]], [DENSE[3], DENSE[2]]),
        (["of_rank0/k", "b"], ["of_rank1/k", "b"]),
        (["Variable:0", "Variable:0"], ["Variable:0", "Variable:0"]),
        ([], []),
        (["a"], ["a", "b"]),
    ],
)
def test_other_numbers_are_not(first, second):
    assert crossed(first, second) is None
    assert crossed(second, first) is None
