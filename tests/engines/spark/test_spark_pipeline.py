"""The estimator and its model among other stages of Spark ML."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
import keras  # noqa: E402
import numpy as np  # noqa: E402
from pyspark import cloudpickle  # noqa: E402
from pyspark.ml import Pipeline, PipelineModel  # noqa: E402
from pyspark.ml.feature import VectorAssembler  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from support.spark_sessions import MASTERS, spark_session  # noqa: E402

from ring_keras.spark import KerasEstimator, KerasModel, Store  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])
PIXELS = [f"pixel {i}" for i in range(64)]


@pytest.fixture(scope="module", params=MASTERS)
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    with spark_session(request.param) as session:
        yield session


def _digits(spark: SparkSession) -> DataFrame:
    images, labels = load_digits(return_X_y=True)
    rows = [
        (i, f"digit {label}", int(label), *(image / 16).tolist())
        for i, (image, label) in enumerate(zip(images, labels, strict=True))
    ]
    return spark.createDataFrame(rows, ["id", "name", "digit", *PIXELS])


def test_a_pipeline_learns_and_is_saved(spark: SparkSession, tmp_path: Path) -> None:
    digits = _digits(spark)
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    estimator = KerasEstimator(
        num_proc=2,
        model=keras.Sequential(layers),
        store=Store.create(tmp_path / "runs"),
        optimizer=keras.optimizers.Adam(0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["image"],
        label_cols=["digit"],
        validation=0.2,
        epochs=6,
        verbose=0,
        random_seed=1,
    )
    pipeline = Pipeline(
        stages=[VectorAssembler(inputCols=PIXELS, outputCol="image"), estimator]
    )

    fitted = pipeline.fit(digits)
    predicted = fitted.transform(digits)

    assert fitted.stages[-1].getHistory()["val_accuracy"][-1] > 0.93
    assert predicted.columns == [*digits.columns, "image", "digit__output"]
    before = digits.select("id", "name").collect()
    rows = predicted.select("id", "name", "digit", "digit__output").collect()
    assert [row[:2] for row in rows] == [row[:] for row in before]
    guesses = [np.argmax(row["digit__output"].toArray()) for row in rows]
    assert np.mean([row["digit"] for row in rows] == np.array(guesses)) > 0.95
    model = fitted.stages[-1].getModel()
    images, _ = load_digits(return_X_y=True)
    np.testing.assert_allclose(
        [row["digit__output"].toArray() for row in rows],
        model.predict(images.reshape(-1, 8, 8, 1) / 16, verbose=0),
        atol=1e-6,
    )

    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    again = loaded.transform(digits).select("id", "name", "digit", "digit__output")
    assert again.collect() == rows
    assert loaded.stages[-1].getHistory() == fitted.stages[-1].getHistory()


class _Doubles(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def test_several_columns_and_objects_of_ones_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = keras.Input((2,), name="first"), keras.Input((1,), name="second")
    doubled = _Doubles()(first)
    model = keras.Model([first, second], [doubled, keras.layers.Identity()(second)])
    stage = KerasModel(
        model,
        feature_cols=["pair", "number"],
        label_cols=["a", "b"],
        output_cols=["twice", "same"],
        custom_objects={"_Doubles": _Doubles},
    )
    frame = spark.createDataFrame(
        [([1.0, 2.0], 3), ([4.0, 5.0], 6)], "pair array<float>, number int"
    )

    stage.write().save(str(tmp_path / "stage"))
    loaded = KerasModel.load(str(tmp_path / "stage"))
    with pytest.raises(TypeError, match="_Doubles"):
        loaded.transform(frame)
    loaded.setCustomObjects({"_Doubles": _Doubles})

    for each in (stage, loaded):
        rows = each.transform(frame).collect()
        assert [list(row["twice"]) for row in rows] == [[2, 4], [8, 10]]
        assert [row["same"] for row in rows] == [3.0, 6.0]
