"""The typed binary form: faithful, and safe to read from anyone."""

from __future__ import annotations

import collections
import contextlib
import enum
import math
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ring_keras.values.encoding import MAX_DEPTH, decode, encode

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    255,
    -(2**63),
    10**100,
    0.0,
    -0.0,
    math.inf,
    1e-320,
    1 + 2j,
    "",
    "naïve ☃ \U0001f600 \ud800",
    b"",
    bytes(range(256)),
    [],
    (),
    {},
    set(),
    frozenset(),
    [[[]], ((),)],
    {"a": {1: (2, [3])}, None: 0, (1, "b"): b"c", 2.5: frozenset({1})},
]


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_plain_values(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=dtype).reshape(2, 3)
        for dtype in ("u1", "i1", "<u2", ">i4", "i8", "f2", "f4", "f8", "c8", "c16")
    ]
    + [
        np.array([True, False]),
        np.array(["text", ""]),
        np.array([b"bytes"]),
        np.array(1.5),
        np.zeros([0, 3], np.int64),
        np.arange(6).reshape(2, 3).T,
        np.arange(4).astype(ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays(array: Any) -> None:
    result = decode(encode([array]))[0]

    assert same(result, np.ascontiguousarray(array).reshape(array.shape))
    assert result.flags.writeable


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.int8(-1), np.bool_(True), ml_dtypes.bfloat16(2)]
)
def test_numpy_scalars(scalar: Any) -> None:
    assert same(decode(encode(scalar)), scalar)


def random_value(generator: random.Random, depth: int = 0) -> Any:
    kinds = 8 if depth < 4 else 5
    size = generator.randrange(4)
    match generator.randrange(kinds):
        case 0:
            return generator.choice([None, True, False])
        case 1:
            return generator.randrange(-(2**80), 2**80)
        case 2:
            return generator.uniform(-1e9, 1e9)
        case 3:
            return "".join(chr(generator.randrange(1, 0xD000)) for _ in range(size))
        case 4:
            return generator.randbytes(size)
        case 5:
            return [random_value(generator, depth + 1) for _ in range(size)]
        case 6:
            return tuple(random_value(generator, depth + 1) for _ in range(size))
        case _:
            return {
                generator.randrange(99): random_value(generator, depth + 1)
                for _ in range(size)
            }


def test_random_values() -> None:
    generator = random.Random(1)
    for _ in range(500):
        value = random_value(generator)
        assert same(decode(encode(value)), value)


class _Subclass(dict):  # type: ignore[type-arg]
    pass


class _Enum(enum.Enum):
    MEMBER = 1


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "value is builtins.object"),
        ([1, {"key": print}], r"value\[1\]\['key'\] is builtins.builtin_function"),
        (_Subclass(), "value is .*_Subclass"),
        (collections.OrderedDict(), "value is collections.OrderedDict"),
        ({_Enum.MEMBER: 1}, "a key of value is .*_Enum"),
        (np.array([object()]), "value is an array of dtype object"),
        (np.zeros(1, [("a", "i4")]), "value is an array of dtype"),
        (test_random_values, "value is builtins.function"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_anything_else_is_refused_by_its_place(value: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place) as info:
        encode(value)
    assert "get_config()" in str(info.value)


def test_nesting_is_bounded() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} deep"):
        encode(endless)
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} deep"):
        decode((b"l" + (1).to_bytes(8, "big")) * 5000 + b"n")


def length(value: int) -> bytes:
    return value.to_bytes(8, "big")


def array(dtype: bytes, *shape: int, content: bytes = b"") -> bytes:
    sizes = b"".join(map(length, shape))
    return b"a" + length(len(dtype)) + dtype + length(len(shape)) + sizes + content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"?",
        b"nn",
        b"i",
        b"i" + length(2**64 - 1),
        b"b" + length(5) + b"four",
        b"u" + length(1) + b"\xff",
        b"l" + length(2**63) + b"n",
        b"d" + length(1) + b"n",
        b"d" + length(1) + b"l" + length(0) + b"n",
        b"s" + length(1) + b"l" + length(0),
        b"\x80\x04N.",  # A pickle.
        array(b"<f4", 2**40),
        array(b"<f4", 2**63, 0),
        array(b"<f4", 2**64 - 1, 0),
        array(b"<f4", *[1] * 65),
        array(b"|O", 1, content=b"12345678"),
        array(b"|O8", 1, content=b"12345678"),
        array(b"<f3", 1, content=b"123"),
        array(b"<U0", 5),
        array(b"i4,i4", 1, content=b"12345678"),
        array(b"(2,)i4", 1, content=b"12345678"),
        array(b"|b1", 1, content=b"\x02"),
        array(b"<U1", 1, content=b"\xff\xff\xff\xff"),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_hostile_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_damaged_bytes_are_a_value_or_an_error() -> None:
    generator = random.Random(2)
    good = encode([PLAIN[:20], np.arange(5), {"a": np.array(["b"])}])
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(generator.randrange(1, 4)):
            bad[generator.randrange(len(bad))] = generator.randrange(256)
        with contextlib.suppress(ValueError):
            decode(bytes(bad[: generator.randrange(1, len(bad) + 1)]))
