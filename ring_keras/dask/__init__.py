"""Jobs on the workers of a Dask cluster; see docs/engines.md.

Needs `pip install ring-keras[dask]`.
"""

import importlib

try:
    importlib.import_module("distributed")
except ImportError as error:
    raise ImportError(
        "[RK710] ring_keras.dask needs Dask's scheduler: pip install 'ring-keras[dask]'"
    ) from error
from ring_keras.dask.elastic_job import run_elastic
from ring_keras.dask.job import run
from ring_keras.dask.shards import Shards, shard
from ring_keras.engines.outcomes import RankFailedError

__all__ = ["RankFailedError", "Shards", "run", "run_elastic", "shard"]
