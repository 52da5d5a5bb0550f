"""Checksums of tensors, and how much of their differences rounding explains."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from ring_keras.optimizers.checksums import bits_checksum, block_length, in_blocks
from ring_keras.optimizers.rounding import Rounding
from ring_keras.values.compression import Compression

TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@pytest.mark.parametrize(
    ("count", "length"),
    [
        (1, 1),
        (16_000, 16_000),
        (3 * (1 << 20), 1 << 14),
        (50_257 * 768, 20_796),
        (999_983, 999_983),  # A prime.
    ],
)
def test_blocks_divide_a_tensor(count, length):
    assert block_length(count) == length


@pytest.mark.parametrize("dtype", [*TYPES, np.int32, np.int64])
def test_any_bit_changes_the_checksum(dtype):
    generator = np.random.default_rng(1)
    values = (100 * generator.normal(size=40_000)).astype(dtype)
    before = float(bits_checksum(tf.constant(values)))
    word = WORDS[values.itemsize]
    for bit in range(8 * values.itemsize):
        changed = values.copy()
        changed.view(word)[generator.integers(len(values))] ^= word(1 << bit)
        assert float(bits_checksum(tf.constant(changed))) != before, bit


def test_blocks_in_the_wrong_place_change_the_checksum():
    values = np.random.default_rng(1).normal(size=1 << 16)
    swapped = np.roll(values, 1 << 14)
    assert float(bits_checksum(tf.constant(values))) != float(
        bits_checksum(tf.constant(swapped))
    )


def test_no_elements_have_a_checksum():
    empty = tf.zeros([0, 4])
    assert float(bits_checksum(empty)) == 0
    assert in_blocks(empty).shape == (1, 0)


def parts_of(dtype, ranks, count, generator):
    """Of magnitudes so different that each kind of rounding happens."""
    exponents = generator.uniform(-45, 3, size=(ranks, count))
    parts = generator.normal(size=(ranks, count)) * 10.0**exponents
    return parts.astype(dtype)


def added(parts, travels_as):
    """As a ring does it: rounded at each hop, and again for the way back."""
    total = parts[0].astype(travels_as)
    for part in parts[1:]:
        wide = total.astype(np.float64) + part.astype(travels_as).astype(np.float64)
        total = wide.astype(travels_as)
    return total.astype(parts.dtype)


@pytest.mark.parametrize("ranks", [2, 3, 64])
@pytest.mark.parametrize("count", [1, 100, 16_384])
@pytest.mark.parametrize(
    ("dtype", "compression"),
    [(dtype, Compression.none) for dtype in TYPES]
    + [(np.float32, Compression.bf16), (np.float32, Compression.fp16)],
)
def test_rounding_is_within_its_bound(dtype, compression, count, ranks):
    travels_as = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}.get(
        compression.value, dtype
    )
    rounding = Rounding.of(tf.as_dtype(dtype), compression, ranks)
    relative, absolute = rounding.of_sum(count, 1.0)
    for seed in range(5):
        parts = parts_of(dtype, ranks, count, np.random.default_rng(seed))
        wide = parts.astype(np.float64)
        came = added(parts, travels_as).astype(np.float64).sum()
        assert np.isfinite(came)
        tolerance = relative * np.abs(wide).sum() + absolute
        assert abs(came - wide.sum()) <= tolerance


def test_an_element_that_changes_by_two_percent_is_more_than_rounding():
    parts = np.random.default_rng(1).normal(size=(2, 1 << 14)).astype(np.float32)
    rounding = Rounding.of(tf.float32, Compression.none, 2)
    relative, absolute = rounding.of_sum(1 << 14, 1.0)
    magnitude = np.abs(parts.astype(np.float64)).sum()
    assert relative * magnitude + absolute < 0.02 * magnitude / (1 << 14)


def test_factors_scale_what_may_vanish():
    rounding = Rounding.of(tf.float16, Compression.none, 2)
    assert rounding.of_sum(10, 8.0)[1] == 8 * rounding.of_sum(10, 0.5)[1]
