"""Stores that are no directories: a server of S3 here, and what fsspec knows."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.engines
pytest.importorskip("pyspark", reason="`make test-engines`")
import keras  # noqa: E402
from pyarrow import fs  # noqa: E402
from support import spark_frames  # noqa: E402
from support.object_stores import KINDS  # noqa: E402
from support.spark_sessions import spark_session  # noqa: E402

from ring_keras import keras_internals as internals  # noqa: E402
from ring_keras.callbacks.backup_files import BackupFiles  # noqa: E402
from ring_keras.spark import KerasEstimator, Store  # noqa: E402
from ring_keras.spark.store import StoreDirectory  # noqa: E402


@pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="needs moto")
def test_checkpoints_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KINDS["s3"].variables.items():
        monkeypatch.setenv(name, value)
    with KINDS["s3"].served() as (address, _):
        monkeypatch.setenv(KINDS["s3"].address_in, address)
        fs.S3FileSystem(
            endpoint_override=address, allow_bucket_creation=True
        ).create_dir("runs")
        store = Store.create("s3a://runs/of one/model")
        model = spark_frames.trained_alone(2)
        files = BackupFiles(StoreDirectory(store, "mine/checkpoints"))
        assert files.restore(model) is None
        for epochs in (1, 2, 3):
            weights = internals.weights_file(model)
            files.save(weights, 10 * epochs, {"epochs": epochs})
        kept = store.files("mine")
        store.write(kept[-1], b"not what was written")  # The weights of the third.

        restored = spark_frames.model()
        restored.compile("sgd", "mse")
        assert files.restore(restored) == files.restore(model)
        assert files.restore(model)["epochs"] == 2

        store.remove("mine")
        assert store.files("mine") == []
    assert [Path(name).name for name in kept] == [
        f"step-{steps:012}{ending}"
        for steps in (20, 30)
        for ending in (".json", ".weights.h5")
    ]
    spark_frames.require_same_weights(restored, model, atol=0)


@pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java")
def test_ranks_read_what_fsspec_knows(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = Store(f"file://{tmp_path}/runs", f"local://{tmp_path}/runs")
    with spark_session() as session:
        fitted = KerasEstimator(
            num_proc=2,
            model=spark_frames.model(),
            store=store,
            optimizer=keras.optimizers.SGD(0.05),
            loss="mse",
            feature_cols=["x"],
            label_cols=["y"],
            batch_size=spark_frames.ROWS,
            epochs=2,
            run_id="mine",
            verbose=0,
        ).fit(spark_frames.frame(session))

    alone = spark_frames.trained_alone(2)
    spark_frames.require_same_weights(fitted.getModel(), alone, atol=1e-6)
    (checkpoints,) = (tmp_path / "runs" / "mine").iterdir()
    assert len(list(checkpoints.iterdir())) == 4
