"""Horovod's names for jobs on Spark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
import keras  # noqa: E402
from pyspark import cloudpickle  # noqa: E402
from support import functions_of_ranks, spark_frames  # noqa: E402
from support.spark_sessions import spark_session  # noqa: E402

import ring_keras.horovod.spark as hvd_spark  # noqa: E402
import ring_keras.horovod.tensorflow.keras as hvd  # noqa: E402


def test_a_call_as_horovods_users_write_it() -> None:
    functions_of_ranks.travel_by(cloudpickle)
    with spark_session():
        results = hvd_spark.run(
            functions_of_ranks.told_sum,
            args=(10,),
            num_proc=2,
            start_timeout=60,
            use_gloo=True,
            verbose=2,
            nics={"lo"},
        )

    assert results == [(0, 2, 30.0, []), (1, 2, 30.0, [])]


def test_an_estimator_as_horovods_users_write_it(tmp_path: Path) -> None:
    from ring_keras.horovod.spark.common.store import LocalStore, Store
    from ring_keras.horovod.spark.keras import KerasEstimator

    assert LocalStore(str(tmp_path)) == Store.create(str(tmp_path))
    with spark_session() as session:
        fitted = KerasEstimator(
            num_proc=2,
            model=spark_frames.model(),
            store=Store.create(str(tmp_path)),
            optimizer=keras.optimizers.SGD(0.05),
            loss="mse",
            gradient_compression=hvd.Compression.none,
            feature_cols=["x"],
            label_cols=["y"],
            batch_size=spark_frames.ROWS,
            epochs=2,
            verbose=0,
            shuffle_buffer_size=0,
            partitions_per_process=3,
            backend_env={"OF_THE_TEST": "here"},
            use_gpu=False,
        ).fit(spark_frames.frame(session))
        predicted = fitted.setOutputCols(["guess"]).transform(
            spark_frames.frame(session)
        )
        assert predicted.columns[-1] == "guess"

    alone = spark_frames.trained_alone(2)
    spark_frames.require_same_weights(fitted.getModel(), alone, atol=1e-6)


def test_what_horovods_estimator_has_alone_is_told() -> None:
    from ring_keras.horovod.spark.keras import KerasEstimator

    with pytest.raises(NotImplementedError, match="num_proc and backend_env"):
        KerasEstimator(backend=object())
    with pytest.raises(NotImplementedError, match="in a stage before"):
        KerasEstimator(transformation_fn=print)
    with pytest.raises(NotImplementedError, match="shard_parquet"):
        KerasEstimator().fit_on_parquet()
    estimator = KerasEstimator(use_gpu=False, shuffle_buffer_size=0)
    assert estimator.getEnv() == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert not estimator.getShuffle()


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(NotImplementedError, match="executors' logs"):
        hvd_spark.run(print, stdout=sys.stdout)


def test_one_interface_may_be_named_alone() -> None:
    told = hvd_spark._variables({"A": "b"}, "eth0")
    assert told == {"A": "b", "RING_KERAS_INTERFACES": "eth0"}
    assert hvd_spark._variables(None, ["eth0", "eth1"]) == {
        "RING_KERAS_INTERFACES": "eth0,eth1"
    }
