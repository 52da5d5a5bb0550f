"""What makes tensors smaller on their way, as Horovod has it: classes of functions.

ring_keras itself compresses what travels between hosts; that is what the classes
here stand for when a function gets them as `compression`. Called by hand they round
tensors. A subclass of a user's own is called before and after each reduction.
"""

from typing import Any

import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._compressors import (
    Compressor,
    NoneCompressor,
    require_compressor,
)

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "compressor_of",
    "native_and_own",
    "native_or_own",
]


class _Rounding(Compressor):
    """To a floating-point type of 16 bits; integers stay as they are."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The rounded tensor, and the dtype it had."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The tensor, in the dtype it had."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class FP16Compressor(_Rounding):
    """To float16."""

    dtype = tf.float16


class BF16Compressor(_Rounding):
    """To bfloat16, which Horovod has not."""

    dtype = tf.bfloat16


class Compression:
    """The values of `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


_CLASSES = {
    ring.Compression.none: NoneCompressor,
    ring.Compression.fp16: FP16Compressor,
    ring.Compression.bf16: BF16Compressor,
}


def native_and_own(compression: Any) -> tuple[ring.Compression, Any]:
    """What ring_keras does itself, and the compressor to call around that.

    Args:
        compression: One of the classes above, a user's own class or an instance of
            one, or what ring_keras's functions take.

    Returns:
        The second is None for what ring_keras does itself.
    """
    if isinstance(compression, str):  # As the members of ring_keras's are.
        return ring.Compression(compression), None
    for name, cls in _CLASSES.items():
        if compression is cls or type(compression) is cls:
            return name, None
    require_compressor(compression)
    return ring.Compression.none, compression


def native_or_own(compression: Any) -> Any:
    """What ring_keras's own functions take for it."""
    native, own = native_and_own(compression)
    return native if own is None else own


def compressor_of(compression: Any) -> Any:
    """The class or object whose functions do what `compression` asks for."""
    native, own = native_and_own(compression)
    return _CLASSES[native] if own is None else own
