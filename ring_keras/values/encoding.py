"""A typed binary form of Python values, safe to read from anyone.

Decoding builds nothing but the types listed at `encode`, runs no code of the
sender's, and takes memory in proportion to the bytes received. That is why
values between ranks travel in this form and not pickled.

Each value is one byte that names its type, then its content. Lengths and
counts are 8 bytes, big-endian.
"""

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["decode", "encode"]

MAX_DEPTH = 100
"""How deep containers may nest."""

_LENGTH = struct.Struct(">Q")
_FLOAT = struct.Struct(">d")
_COMPLEX = struct.Struct(">dd")

# Booleans, integers, floats, complex numbers, bytes, text.
_ARRAY_KINDS = "biufcSU"
# ml_dtypes gives it kind "V", and no byte order to write down.
_BFLOAT16: "np.dtype[Any]" = np.dtype(ml_dtypes.bfloat16)

_CONTAINERS: dict[type, bytes] = {
    list: b"l",
    tuple: b"t",
    set: b"s",
    frozenset: b"z",
}


def encode(value: Any) -> bytes:
    """Writes a value down.

    Args:
        value: None, bool, int, float, complex, str, bytes, NumPy arrays and
            scalars of numbers, bools or text; list, tuple, dict, set and
            frozenset of these. Tensors and variables become NumPy arrays, a scalar
            of text becomes bytes.

    Returns:
        What `decode` reads; never empty.

    Raises:
        TypeError: If `value` holds anything else, instances of subclasses
            included. Names it by its place.
        ValueError: If it nests more than `MAX_DEPTH` deep, as a list that
            contains itself does.
    """
    out: list[bytes] = []
    _encode(value, out, "value", 0)
    return b"".join(out)


def decode(data: bytes) -> Any:
    """Reads what `encode` wrote.

    Raises:
        ValueError: If `data` is anything else.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.position != len(data):
        raise ValueError(
            f"encoded value: expected {reader.position} bytes. "
            f"Received: {len(data)} bytes"
        )
    return value


def _encode(value: Any, out: list[bytes], place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(
            f"Cannot encode a value that nests more than {MAX_DEPTH} deep. "
            "Does it contain itself?"
        )
    kind = type(value)
    if value is None:
        out.append(b"n")
    elif kind is bool:
        out.append(b"T" if value else b"F")
    elif kind is int:
        nbytes = value.bit_length() // 8 + 1
        _sized(out, b"i", value.to_bytes(nbytes, "big", signed=True))
    elif kind is float:
        out.append(b"f" + _FLOAT.pack(value))
    elif kind is complex:
        out.append(b"c" + _COMPLEX.pack(value.real, value.imag))
    elif kind is str:
        _sized(out, b"u", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        _sized(out, b"b", value)
    elif kind in _CONTAINERS:
        out.append(_CONTAINERS[kind] + _LENGTH.pack(len(value)))
        for index, item in enumerate(value):
            _encode(item, out, f"{place}[{index}]", depth + 1)
    elif kind is dict:
        out.append(b"d" + _LENGTH.pack(len(value)))
        for key, item in value.items():
            _encode(key, out, f"a key of {place}", depth + 1)
            _encode(item, out, f"{place}[{key!r}]", depth + 1)
    elif isinstance(value, np.bytes_):  # An array of it would lose zeros at its end.
        _sized(out, b"y", bytes(value))
    elif isinstance(value, np.ma.MaskedArray):
        _refuse(place, "a masked array")  # Its mask would be lost.
    elif isinstance(value, np.ndarray | np.generic):
        _encode_array(value, out, place)
    elif callable(getattr(value, "numpy", None)):
        content = value.numpy()
        if type(content) is bytes:  # As above.
            _sized(out, b"b", content)
        else:
            _encode_array(np.asarray(content), out, place)
    else:
        _refuse(place, f"{kind.__module__}.{kind.__qualname__}")


def _encode_array(
    value: "np.ndarray[Any, Any] | np.generic", out: list[bytes], place: str
) -> None:
    array = np.asarray(value)
    is_bfloat16 = array.dtype == _BFLOAT16
    if not is_bfloat16 and array.dtype.kind not in _ARRAY_KINDS:
        _refuse(place, f"an array of dtype {array.dtype}")
    name = "bfloat16" if is_bfloat16 else array.dtype.str
    tag = b"a" if isinstance(value, np.ndarray) else b"g"
    _sized(out, tag, name.encode("ascii"))
    out.append(_LENGTH.pack(array.ndim))
    out.extend(_LENGTH.pack(size) for size in array.shape)
    # bfloat16 has no buffer of its own.
    flat = np.ascontiguousarray(array).reshape(-1)
    out.append(flat.view(np.uint16).tobytes() if is_bfloat16 else flat.tobytes())


def _sized(out: list[bytes], tag: bytes, content: bytes) -> None:
    out.append(tag + _LENGTH.pack(len(content)))
    out.append(content)


def _refuse(place: str, what: str) -> None:
    raise TypeError(
        "[RK413] "
        f"Only plain values can be sent between ranks; {place} is {what}. Send its "
        "content instead, as None, bool, int, float, complex, str, bytes, NumPy "
        "arrays, or lists, tuples, dicts and sets of these: for instance "
        "dataclasses.asdict(x), vars(x) or layer.get_config()."
    )


class _Reader:
    """Reads one value after the other from bytes that may be anything."""

    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._data = data
        self._readers: dict[bytes, Callable[[int], Any]] = {
            b"n": lambda depth: None,
            b"T": lambda depth: True,
            b"F": lambda depth: False,
            b"i": lambda depth: int.from_bytes(self._sized(), "big", signed=True),
            b"f": lambda depth: _FLOAT.unpack(self._take(_FLOAT.size))[0],
            b"c": lambda depth: complex(*_COMPLEX.unpack(self._take(_COMPLEX.size))),
            b"u": lambda depth: self._sized().decode("utf-8", "surrogatepass"),
            b"b": lambda depth: self._sized(),
            b"l": self._items,
            b"t": lambda depth: tuple(self._items(depth)),
            b"s": lambda depth: self._hashed(set, depth),
            b"z": lambda depth: self._hashed(frozenset, depth),
            b"d": self._dict,
            b"a": lambda depth: self._array(),
            b"g": lambda depth: self._array()[()],
            b"y": lambda depth: np.bytes_(self._sized()),
        }

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"encoded value: nests more than {MAX_DEPTH} deep")
        tag = self._take(1)
        reader = self._readers.get(tag)
        if reader is None:
            raise ValueError(f"encoded value: no type has the tag {tag!r}")
        return reader(depth)

    def _take(self, nbytes: int) -> bytes:
        left = len(self._data) - self.position
        if nbytes > left:
            raise ValueError(
                f"encoded value: expected {nbytes} more bytes. Received: {left}"
            )
        taken = self._data[self.position : self.position + nbytes]
        self.position += nbytes
        return taken

    def _length(self) -> int:
        length: int = _LENGTH.unpack(self._take(_LENGTH.size))[0]
        return length

    def _sized(self) -> bytes:
        return self._take(self._length())

    def _items(self, depth: int) -> list[Any]:
        # A wrong count ends where the bytes do: every item takes at least one.
        return [self.value(depth + 1) for _ in range(self._length())]

    def _hashed(self, kind: type, depth: int) -> Any:
        items = self._items(depth)
        try:
            return kind(items)
        except TypeError as error:
            raise ValueError(f"encoded value: {error}") from None

    def _dict(self, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for _ in range(self._length()):
            key = self.value(depth + 1)
            try:
                result[key] = self.value(depth + 1)
            except TypeError as error:
                raise ValueError(f"encoded value: {error}") from None
        return result

    def _array(self) -> "np.ndarray[Any, Any]":
        dtype = _read_dtype(self._sized())
        dimension_count = self._length()
        if dimension_count > 64:  # NumPy's own bound.
            raise ValueError(f"encoded value: {dimension_count} dimensions")
        shape = [self._length() for _ in range(dimension_count)]
        count = 1
        for size in shape:
            count *= size
        content = self._take(count * dtype.itemsize)
        _check_elements(content, dtype)
        try:
            # A copy: frombuffer's arrays cannot be written to.
            array: np.ndarray[Any, Any] = (
                np.frombuffer(content, dtype).reshape(shape).copy()
            )
        except (OverflowError, ValueError) as error:
            raise ValueError(f"encoded value: {error}") from None
        return array


def _check_elements(content: bytes, dtype: "np.dtype[Any]") -> None:
    """Refuses bits that stand for no value of the type."""
    if dtype.kind == "b" and (np.frombuffer(content, np.uint8) > 1).any():
        raise ValueError("encoded value: a bool is neither 0 nor 1")
    if dtype.kind == "U":
        code_points = np.frombuffer(content, np.dtype(f"{dtype.byteorder}u4"))
        if (code_points > 0x10FFFF).any():
            raise ValueError("encoded value: no character has this code")


def _read_dtype(name: bytes) -> "np.dtype[Any]":
    if name == b"bfloat16":
        return _BFLOAT16
    # Checked first: NumPy evaluates some texts as structured types.
    text = name.decode("ascii", "replace")
    if not (
        len(text) >= 3
        and text[0] in "<>|="
        and text[1] in _ARRAY_KINDS
        and text[2:].isdecimal()
        and int(text[2:]) > 0
    ):
        raise ValueError(f"encoded value: no dtype is named {text!r}")
    try:
        dtype: np.dtype[Any] = np.dtype(text)
    except TypeError as error:
        raise ValueError(f"encoded value: {error}") from None
    return dtype
