"""Each rank's part of the data."""

from typing import Any

from ring_keras._requirements import has_own, of_back_end, require_tensorflow

if has_own("data.shard"):

    def __getattr__(name: str) -> Any:
        found = of_back_end(f"data.{name}")
        if found is None and name in __all__:
            require_tensorflow(f"ring_keras.data.{name}")
        if found is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return found

else:
    require_tensorflow("ring_keras.data")

    from ring_keras.data.join import join
    from ring_keras.data.read_tar import read_tar
    from ring_keras.data.resume import Resume
    from ring_keras.data.shard import shard
    from ring_keras.data.shard_arrow import shard_arrow
    from ring_keras.data.shard_files import shard_files
    from ring_keras.data.shard_kafka import shard_kafka
    from ring_keras.data.shard_parquet import shard_parquet
    from ring_keras.data.shared_array import shared_array
    from ring_keras.data.tensorflow_io import tensorflow_io
    from ring_keras.data.weighted_step import weighted_step

__all__ = [
    "Resume",
    "join",
    "read_tar",
    "shard",
    "shard_arrow",
    "shard_files",
    "shard_kafka",
    "shard_parquet",
    "shared_array",
    "tensorflow_io",
    "weighted_step",
]
