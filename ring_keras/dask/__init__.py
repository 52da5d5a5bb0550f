"""Jobs on the workers of a Dask cluster; see docs/engines.md.

Needs `pip install ring-keras[dask]`.
"""

from ring_keras.dask.job import run
from ring_keras.dask.shards import Shards, shard
from ring_keras.engines.outcomes import RankFailedError

__all__ = ["RankFailedError", "Shards", "run", "shard"]
