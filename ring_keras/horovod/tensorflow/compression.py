"""Takes the place of `horovod.tensorflow.compression`."""

from ring_keras.horovod._compression import (
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
