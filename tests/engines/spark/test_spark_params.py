"""What the estimator and the store can be told, without a session."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engines
pytest.importorskip("pyspark", reason="`make test-engines`")
import keras  # noqa: E402

from ring_keras.spark import KerasEstimator, KerasModel, Store  # noqa: E402

DENSE = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
WHOLE = {
    "model": DENSE,
    "store": Store.create("/nowhere"),
    "feature_cols": ["x"],
    "label_cols": ["y"],
}


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"feature_col": ["x"]}, "Did you mean 'feature_cols'"),
        ({"feature_cols": "x"}, "feature_cols"),
        ({"store": "/shared"}, r"Store\.create\('/shared/runs'\)"),
        ({"model": "dense"}, "a keras.Model"),
        ({"epochs": 0}, "`epochs` must be at least 1. Received: epochs=0"),
        ({"validation": 1.5}, "more than 0 and less than 1"),
        ({"run_id": "../mine"}, "names a directory in the store"),
        ({"custom_objects": ["Layer"]}, "a dictionary"),
    ],
)
def test_values_that_cannot_be_are_told(params: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        KerasEstimator(**params)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"store": None}, "needs `store`"),
        ({"model": None, "label_cols": []}, "needs `model`, `label_cols`"),
        ({"optimizer": None}, "needs both `optimizer` and `loss`"),
        ({"optimizer": None, "loss": None}, "or a compiled model"),
        ({"val_batch_size": 3}, "`validation` which rows"),
    ],
)
def test_what_is_missing_or_contradicts_is_told(
    params: dict[str, Any], text: str
) -> None:
    whole = WHOLE | {"optimizer": "adam", "loss": "mse"}
    estimator = KerasEstimator(**{**whole, **params})
    with pytest.raises(ValueError, match=text):
        estimator.compiled_model()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("callbacks", [keras.callbacks.TerminateOnNaN()]),
        ("custom_objects", {"Dense": keras.layers.Dense}),
        ("gradient_compression", object()),
    ],
)
def test_code_is_not_saved(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{name}` are code, which is not saved"):
        KerasEstimator(**WHOLE, **{name: value}).saved_parts()


def test_a_model_needs_to_know_its_columns() -> None:
    with pytest.raises(ValueError, match="KerasModel needs `label_cols`"):
        KerasModel(DENSE, feature_cols=["x"]).transform(None)


def test_parameters_are_those_of_spark_ml() -> None:
    estimator = KerasEstimator(**WHOLE).setEpochs(3).setValidation("validates")

    other = estimator.copy({estimator.epochs: 5})

    assert (estimator.getEpochs(), other.getEpochs()) == (3, 5)
    assert other.getValidation() == "validates"
    assert other.getFeatureCols() == ["x"]
    assert "current: 5" in other.explainParam("epochs")


@pytest.mark.parametrize(
    ("path", "spark_prefix", "prefix"),
    [
        ("/shared/runs/", "file:///shared/runs", "/shared/runs"),
        ("/a b", "file:///a b", "/a b"),
        ("file:///shared", "file:///shared", "/shared"),
        ("dbfs:/runs", "dbfs:/runs", "/dbfs/runs"),
        ("/dbfs/runs", "dbfs:/runs", "/dbfs/runs"),
        ("hdfs://node:8020/runs", "hdfs://node:8020/runs", "hdfs://node:8020/runs"),
        ("s3a://bucket/runs", "s3a://bucket/runs", "s3://bucket/runs"),
        ("gs://bucket/runs", "gs://bucket/runs", "gs://bucket/runs"),
    ],
)
def test_spark_and_python_have_a_name_for_it(
    path: str, spark_prefix: str, prefix: str
) -> None:
    store = Store.create(path)

    assert store == Store(spark_prefix, prefix)
    assert pickle.loads(pickle.dumps(store)) == copy.copy(store) == store


def test_files_of_a_store(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "not yet there")
    assert store.files("run") == []
    store.remove("run")

    store.write("run/b/2", b"two")
    store.write("run/1", b"one")

    assert store.files("run") == ["run/1", "run/b/2"]
    with store.open("run/b/2") as file:
        assert file.read() == b"two"
    store.remove("run/b")
    store.remove("run/1")
    assert store.files("run") == []


@pytest.mark.parametrize("path", ["", "/runs[1]", "s3://bucket/runs?region=x"])
def test_a_path_that_is_none_is_told(path: str) -> None:
    with pytest.raises(ValueError, match="Received: prefix_path"):
        Store.create(path)
