"""What the device code must do, on the stand-in's GPU and on a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from ring_keras import _native
from support.gpu_memory import GpuArray, Stream
from support.tensors import DTYPES, FLOATS, Array, numpy_dtype

NARROW = ["float16", "bfloat16"]
SCALES = [0.25, 1 / 3, -2.5, 1e300, 0.0, float("inf"), float("nan")]

# Of the positive quiet NaN.
_NAN_BITS = {
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float32": 0x7FC00000,
    "float64": 0x7FF8000000000000,
}


def check_copies(dtype: str) -> None:
    """Bits stay what they are."""
    _check(dtype, dtype, 1.0, _counts(seed=1))
    _check(dtype, dtype, 1.0, _counts(seed=2), packed=True)


def check_scales(dtype: str) -> None:
    for scale in SCALES:
        _check(dtype, dtype, scale, _counts(seed=3), packed=scale > 0)


def check_conversions(dtype: str) -> None:
    for scale in (1.0, 0.125, 1 / 3, -7.0):
        for packed in (False, True):
            _check("float32", dtype, scale, _counts(seed=4), packed)
            _check(dtype, "float32", scale, _counts(seed=5), packed)


def check_every_value(dtype: str) -> None:
    """All 65536 to float32; back, from around every value and every tie."""
    every = np.arange(65536, dtype=np.uint32)
    lower = [0, 1, 0xFFF, 0x1000, 0x1001, 0x2000, 0x3000]
    lower += [0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xF000, 0xF001, 0xFFFF]
    around = ((every << 16)[:, None] | np.array(lower, np.uint32)).ravel()
    for from_dtype, to_dtype, values in (
        (dtype, "float32", every.astype(np.uint16).view(numpy_dtype(dtype))),
        ("float32", dtype, around.view(np.float32)),
    ):
        stream = Stream(0)
        source = GpuArray.of(stream, values)
        target = GpuArray(stream, values.shape, numpy_dtype(to_dtype))
        segments = [(source.address, target.address, values.size)]
        _copy(stream, from_dtype, to_dtype, 1.0, segments)
        _assert_same_bits(target.read(), scaled(values, to_dtype, 1.0))
        _close(stream, source, target)


def check_hundreds() -> None:
    """More segments than one launch takes, most of them tiny, and a large one."""
    counts = [index % 7 for index in range(1000)]
    counts[500] = 300_000
    _check("float32", "float32", 0.5, counts, packed=True)
    _check("float32", "bfloat16", 0.5, counts)
    _check("uint8", "uint8", 1.0, counts)


def check_in_place(dtype: str) -> None:
    stream = Stream(0)
    values = random_bits(5000, dtype, seed=6)
    array = GpuArray.of(stream, values)
    begin = 3 * values.itemsize
    place = array.address + begin
    _copy(stream, dtype, dtype, 0.75, [(place, place, values.size - 3)])
    expected = np.concatenate([values[:3], scaled(values[3:], dtype, 0.75)])
    _assert_same_bits(array.read(), expected)
    _close(stream, array)


def check_sums(dtype: str) -> None:
    generator = np.random.default_rng(7)
    stream = Stream(0)
    for piece_count in (1, 2, 3, 8):
        for count in (1, 7, 64, 1000, 40_001):
            pieces = random_bits(piece_count * count, dtype, seed=count)
            scale = 1.0 if piece_count % 2 == 0 else 1 / piece_count
            expected = _summed(pieces.reshape(piece_count, count), scale)
            # Neither side aligned.
            shift = int(generator.integers(8))
            source = GpuArray.of(stream, _shifted(pieces, shift))
            target = GpuArray.of(stream, np.zeros(count + shift, pieces.dtype))
            _native.sum_pieces(
                stream.device,
                stream.handle,
                dtype,
                source.address + shift * 2,
                piece_count,
                count,
                scale,
                target.address + shift * 2,
            )
            _assert_same_bits(target.read()[shift:], expected)
            source.free()
            target.free()
    _close(stream)


def check_refusals() -> None:
    for from_dtype, to_dtype, scale in (
        ("bool", "bool", 2.0),
        ("float64", "float16", 1.0),
        ("int32", "float32", 1.0),
    ):
        with pytest.raises(ValueError, match=f"{from_dtype} to {to_dtype} scaled by"):
            _copy(Stream(0), from_dtype, to_dtype, scale, [(256, 512, 1)])
    with pytest.raises(ValueError, match=r"float16 or bfloat16.* got float32"):
        _native.sum_pieces(0, 0, "float32", 256, 1, 1, 1.0, 512)


CASES: list[tuple[str, Callable[[], None]]] = [
    *((f"copies-{dtype}", partial(check_copies, dtype)) for dtype in DTYPES),
    *((f"scales-{dtype}", partial(check_scales, dtype)) for dtype in DTYPES[:-1]),
    *((f"converts-{dtype}", partial(check_conversions, dtype)) for dtype in NARROW),
    *((f"every-{dtype}", partial(check_every_value, dtype)) for dtype in NARROW),
    *((f"in-place-{dtype}", partial(check_in_place, dtype)) for dtype in DTYPES[:-1]),
    *((f"sums-{dtype}", partial(check_sums, dtype)) for dtype in NARROW),
    ("hundreds", check_hundreds),
    ("refusals", check_refusals),
]


def scaled(values: Array, to_dtype: str, scale: float) -> Array:
    """By numpy, what the device must give bit for bit."""
    from_dtype = values.dtype.name
    with np.errstate(all="ignore"):
        if from_dtype == to_dtype and scale == 1.0:
            return values.copy()
        if from_dtype == "float64":
            return _canonical(values * scale)
        if from_dtype in FLOATS:
            product = values.astype(np.float32) * np.float32(scale)
            return _canonical(product.astype(numpy_dtype(to_dtype)))
        return _truncated(values.astype(np.float64) * scale, values.dtype)


def random_bits(count: int, dtype: str, seed: int) -> Array:
    """Every kind of value: NaN, infinities, denormals; many of similar size."""
    generator = np.random.default_rng([seed, count])
    kind = numpy_dtype(dtype)
    values = np.frombuffer(generator.bytes(count * kind.itemsize), kind).copy()
    if dtype == "bool":
        return (values.view(np.uint8) & 1).view(kind)
    if dtype in FLOATS:
        ordinary = generator.random(count) < 0.5
        values[ordinary] = generator.standard_normal(count).astype(kind)[ordinary]
    return values


def _counts(seed: int) -> list[int]:
    """Empty, tiny, of several tiles."""
    generator = np.random.default_rng(seed)
    tiny = generator.integers(0, 80, 40)
    middle = generator.integers(0, 3000, 6)
    return [*map(int, tiny), 0, *map(int, middle), 33_333, 1]


def _check(
    from_dtype: str,
    to_dtype: str,
    scale: float,
    counts: Sequence[int],
    packed: bool = False,
) -> None:
    """Segments that begin anywhere, to places with gaps between them, or packed."""
    generator = np.random.default_rng(len(counts))
    stream = Stream(0)
    gaps = generator.integers(0, 16, (2, len(counts)))
    if packed:
        gaps[1, 1:] = 0
    sizes = np.array(counts) + gaps
    from_starts, to_starts = np.cumsum(sizes, axis=1) - counts
    total = sizes.sum(axis=1)

    values = random_bits(int(total[0]), from_dtype, seed=8)
    kind = numpy_dtype(to_dtype)
    before = np.full(int(total[1]) * kind.itemsize, 0xA5, np.uint8).view(kind)
    expected = before.copy()
    source = GpuArray.of(stream, values)
    target = GpuArray.of(stream, before)
    segments = []
    for count, start, place in zip(counts, from_starts, to_starts, strict=True):
        expected[place : place + count] = scaled(
            values[start : start + count], to_dtype, scale
        )
        segments.append(
            (
                source.address + int(start) * values.itemsize,
                target.address + int(place) * kind.itemsize,
                count,
            )
        )
    _copy(stream, from_dtype, to_dtype, scale, segments)
    _assert_same_bits(target.read(), expected)
    _close(stream, source, target)


def _copy(
    stream: Stream,
    from_dtype: str,
    to_dtype: str,
    scale: float,
    segments: Sequence[tuple[int, int, int]],
) -> None:
    _native.copy_scaled(
        stream.device,
        stream.handle,
        from_dtype,
        to_dtype,
        scale,
        np.array(segments, np.uint64),
    )


def _summed(pieces: Array, scale: float) -> Array:
    with np.errstate(all="ignore"):
        total = pieces[0].astype(np.float32)
        for piece in pieces[1:]:
            total = total + piece.astype(np.float32)
        return _canonical((total * np.float32(scale)).astype(pieces.dtype))


def _canonical(values: Array) -> Array:
    bits = values.view(f"u{values.itemsize}")
    bits[np.isnan(values)] = _NAN_BITS[values.dtype.name]
    return values


def _truncated(values: Array, dtype: np.dtype[Any]) -> Array:
    limits = np.iinfo(dtype)
    end = 2.0 * float(limits.max // 2 + 1)
    result = np.zeros(values.shape, dtype)
    inside = (values > limits.min) & (values < end)
    result[inside] = values[inside].astype(dtype)
    result[values >= end] = limits.max
    result[values <= limits.min] = limits.min
    return result


def _shifted(values: Array, shift: int) -> Array:
    return np.concatenate([np.zeros(shift, values.dtype), values])


def _assert_same_bits(got: Array, expected: Array) -> None:
    bits = f"u{expected.itemsize}"
    np.testing.assert_array_equal(got.view(bits), expected.view(bits))


def _close(stream: Stream, *arrays: GpuArray) -> None:
    for array in arrays:
        array.free()
    stream.close()
