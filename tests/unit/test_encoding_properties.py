"""The typed binary form, of any value and from any bytes."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.properties import QUICK_AND_DEEP, for_any

from ring_keras.values.encoding import decode, encode


def same(one: Any, other: Any) -> bool:
    """Of the same types and bits, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and (
            one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return same(list(one), list(other)) and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return one == other  # Their order is none, nor that of their texts.
    return repr(one) == repr(other)


HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | st.binary(),
    lambda inner: (
        st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.tuples()
    ),
    max_leaves=6,
)
DTYPES = (
    npst.boolean_dtypes()
    | npst.integer_dtypes(endianness="<")
    | npst.integer_dtypes(endianness=">")
    | npst.unsigned_integer_dtypes()
    | npst.floating_dtypes(endianness=">")
    | npst.floating_dtypes()
    | npst.complex_number_dtypes()
    | npst.byte_string_dtypes()
    | npst.unicode_string_dtypes()
)
ARRAYS = npst.arrays(
    DTYPES, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
) | npst.arrays(np.float32, st.integers(0, 9)).map(
    lambda array: array.astype(ml_dtypes.bfloat16)
)
VALUES = st.recursive(
    HASHABLE | st.just(math.nan) | ARRAYS | DTYPES.flatmap(npst.from_dtype),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=12,
)

LENGTHS = st.integers(0, 9) | st.integers(0, 2**64 - 1)
# Parts of which encoded values are made, in any order.
PARTS = (
    st.sampled_from([bytes([tag]) for tag in b"nTFifcubltszdag"])
    | LENGTHS.map(lambda length: length.to_bytes(8, "big"))
    | st.sampled_from([b"<f4", b"|b1", b"<U2", b"|S3", b">c8", b"<f16", b"bfloat16"])
    | st.from_regex(rb"[<>|=][biufcSUOV][0-9]{1,30}", fullmatch=True)
    | st.binary(max_size=12)
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An encoded value of which a piece is left out, repeated or another."""
    good = encode(draw(VALUES))
    start = draw(st.integers(0, len(good)))
    end = draw(st.integers(start, min(len(good), start + 12)))
    return good[:start] + draw(PARTS | st.just(good[start:end] * 2)) + good[end:]


@QUICK_AND_DEEP
def test_any_value_survives(examples: int) -> None:
    def check(value: Any) -> None:
        assert same(decode(encode(value)), value)

    for_any(VALUES, check, examples)


@QUICK_AND_DEEP
def test_any_bytes_are_a_value_or_the_documented_error(examples: int) -> None:
    def check(data: bytes) -> None:
        try:
            value = decode(data)
        except ValueError:
            return
        assert same(decode(encode(value)), value)

    soup = st.lists(PARTS, max_size=12).map(b"".join)
    for_any(soup | damaged() | st.binary(), check, examples)
