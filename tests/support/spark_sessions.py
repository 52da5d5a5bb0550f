"""Sessions of real Spark."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession

# Of the workers, too.
os.environ["PYSPARK_PYTHON"] = sys.executable
# Threads of the driver, and executors that are processes.
MASTERS = ["local[2]", "local-cluster[2,1,1024]"]


@contextlib.contextmanager
def spark_session(master: str = MASTERS[0]) -> Iterator[SparkSession]:
    """Ended afterwards: the next one may have another master."""
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "1g")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()
