"""What counts as a difference, and what as rounding."""

import numpy as np
import pytest

from ring_keras.verify.differences import (
    differences,
    relative_tolerance,
    rounding_noise,
)

START = np.linspace(-1, 1, 8, dtype=np.float32)
UPDATE = np.float32([1e-3, -2e-3, 3e-3, 0, 1e-3, 5e-4, -1e-3, 2e-3])


def compared(got, expected, reordered=None, tolerance=1e-4):
    reordered = expected if reordered is None else reordered
    noise = rounding_noise([[expected]], [[[reordered]]])
    return differences(["v"], [START], [got], [expected], noise, tolerance)


def test_rounding_is_no_difference() -> None:
    expected = START + UPDATE

    assert not compared(np.nextafter(expected, 2), expected)


def test_what_another_order_changes_as_much_is_none() -> None:
    expected = START + UPDATE

    assert not compared(expected + 1e-4, expected, reordered=expected - 1e-4)
    assert compared(expected + 1e-4, expected)


def test_one_order_that_rounds_alike_is_not_taken_for_no_noise() -> None:
    steps = [[START], [START + UPDATE]]
    reordered = [steps, [[START + UPDATE], steps[1]]]

    assert rounding_noise(steps, reordered) == pytest.approx(
        [np.linalg.norm(UPDATE)], rel=1e-4
    )


def test_a_step_without_numbers_does_not_hide_those_of_others() -> None:
    broken = np.full(8, np.nan)
    steps = [[START, START], [broken, START]]
    others = [[[START + UPDATE, START], [broken, np.full(8, np.inf)]]]

    noise = rounding_noise(steps, others)

    assert noise == pytest.approx([np.linalg.norm(UPDATE), 0.0], rel=1e-4)


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0])
def test_a_multiple_is_told(factor: float) -> None:
    (found,) = compared(START + np.float32(factor) * UPDATE, START + UPDATE)

    assert found.factor == pytest.approx(factor, rel=1e-3)
    assert found.largest == pytest.approx(abs(factor - 1) * 3e-3, rel=1e-3)
    assert found.relative == pytest.approx(abs(factor - 1), rel=1e-3)


def test_another_direction_is_no_multiple() -> None:
    (found,) = compared(START + UPDATE[::-1], START + UPDATE)

    assert found.factor is None


def test_not_a_number_differs_from_a_number_alone() -> None:
    expected = START + UPDATE
    broken = np.where(np.arange(8) == 3, np.float32("nan"), expected)

    assert compared(broken, expected)
    assert not compared(broken, broken)


def test_what_one_process_leaves_alone() -> None:
    (found,) = compared(START + UPDATE, START.copy())

    assert found.relative == float("inf")
    assert found.factor is None


def test_a_narrow_type_is_given_more_room() -> None:
    assert relative_tolerance("bfloat16") > relative_tolerance("float32")
    assert relative_tolerance("float64") < relative_tolerance("float32")
