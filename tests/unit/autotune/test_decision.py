"""From times to thresholds and bucket sizes."""

from __future__ import annotations

import pytest

from ring_keras.autotune.decision import (
    best_bucket_bytes,
    best_thresholds,
    beyond_measured,
)


def times(latency: float, per_byte: float) -> dict[int, float]:
    return {size: latency + per_byte * size for size in (1, 10, 100, 1000, 10_000)}


def test_a_threshold_is_the_last_size_at_which_the_first_wins() -> None:
    first, second = times(1, 1), times(100, 0.1)

    assert best_thresholds([first, second], [None]) == [100]


def test_one_that_never_wins_gets_nothing_and_one_that_always_does_everything() -> None:
    good, bad = times(1, 1), times(2, 2)

    assert best_thresholds([bad, good], [None]) == [0]
    assert best_thresholds([good, bad], [None]) == [10_000]


def test_three_algorithms() -> None:
    low, middle, high = times(1, 1), times(50, 0.5), times(1000, 0.1)

    assert best_thresholds([low, middle, high], [None, None]) == [10, 1000]


def test_one_outlier_does_not_move_a_threshold_far() -> None:
    first, second = times(1, 1), times(100, 0.1)
    first[1] = 101  # Slower than the second, by an accident.

    assert best_thresholds([first, second], [None]) == [100]


@pytest.mark.parametrize("fixed", [0, 7, 10**9])
def test_what_the_user_fixed_stays(fixed: int) -> None:
    low, middle, high = times(1, 1), times(50, 0.5), times(1000, 0.1)

    assert best_thresholds([low, middle, high], [fixed, None])[0] == fixed


def test_a_middle_one_that_the_user_left_nothing_for_is_not_given_sizes() -> None:
    low, middle, high = times(1, 1), times(50, 0.5), times(1000, 0.1)

    assert best_thresholds([low, middle, high], [10**9, None]) == [10**9, 0]


def test_what_wins_at_the_largest_size_goes_on_above() -> None:
    sizes = times(1, 1)

    assert beyond_measured(10_000, sizes, 64_000) == 64_000
    assert beyond_measured(10_000, sizes, 500) == 10_000
    assert beyond_measured(1000, sizes, 64_000) == 1000


def test_a_bucket_weighs_latency_against_what_nothing_hides() -> None:
    sizes = [1 << power for power in range(20, 26)]

    def chosen(latency_s: float, rate: float) -> int:
        return best_bucket_bytes({size: latency_s + size / rate for size in sizes})

    # sqrt(latency * rate * 64 MiB) is 1, 4 and 16 MiB.
    assert chosen(2**14 / 1e9, 1e9) == 1 << 20
    assert chosen(2**18 / 1e9, 1e9) == 4 << 20
    assert chosen(2**22 / 1e9, 1e9) == 16 << 20
    assert chosen(0, 1e9) == 1 << 20
    assert chosen(1, 1e9) == 32 << 20


def test_a_single_measured_bucket_is_taken() -> None:
    assert best_bucket_bytes({1 << 20: 0.5}) == 1 << 20
