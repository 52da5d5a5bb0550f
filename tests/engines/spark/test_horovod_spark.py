"""Horovod's names for jobs on Spark."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from support import functions_of_ranks

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import ring_keras.horovod.spark as hvd_spark  # noqa: E402


def test_a_call_as_horovods_users_write_it() -> None:
    functions_of_ranks.travel_by(cloudpickle)
    builder = SparkSession.builder.master("local[2]")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        results = hvd_spark.run(
            functions_of_ranks.told_sum,
            args=(10,),
            num_proc=2,
            start_timeout=60,
            use_gloo=True,
            verbose=2,
            nics={"lo"},
        )
    finally:
        session.stop()

    assert results == [(0, 2, 30.0, []), (1, 2, 30.0, [])]


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(NotImplementedError, match="max_restarts"):
        hvd_spark.run_elastic(print, num_proc=2, max_np=4)
    with pytest.raises(NotImplementedError, match="executors' logs"):
        hvd_spark.run(print, stdout=sys.stdout)
