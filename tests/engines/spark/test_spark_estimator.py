"""Fitting data frames on real Spark, compared with one process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java"),
]
pytest.importorskip("pyspark", reason="`make test-engines`")
import keras  # noqa: E402
import numpy as np  # noqa: E402
from pyspark import cloudpickle  # noqa: E402
from pyspark.ml.linalg import SparseVector  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from support import functions_of_ranks, spark_frames  # noqa: E402
from support.spark_frames import frame, require_same_weights, trained_alone  # noqa: E402
from support.spark_sessions import spark_session  # noqa: E402

import ring_keras as ring  # noqa: E402
from ring_keras.spark import KerasEstimator, RankFailedError, Store  # noqa: E402

functions_of_ranks.travel_by(cloudpickle)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
EPOCHS = 4


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture
def estimator(tmp_path: Path) -> Callable[..., KerasEstimator]:
    def make(**params: Any) -> KerasEstimator:
        return KerasEstimator(
            **{
                "num_proc": 2,
                "model": spark_frames.model(),
                "store": Store.create(tmp_path / "of one"),
                "optimizer": keras.optimizers.SGD(0.05),
                "loss": "mse",
                "feature_cols": ["x"],
                "label_cols": ["y"],
                "batch_size": spark_frames.ROWS,  # More than a rank has.
                "epochs": EPOCHS,
                "verbose": 0,
                "random_seed": 3,
            }
            | params
        )

    return make


@pytest.mark.parametrize("weighted", [False, True])
def test_two_ranks_train_as_one_process_on_all_rows(
    spark: SparkSession,
    estimator: Callable[..., KerasEstimator],
    tmp_path: Path,
    weighted: bool,
) -> None:
    fitted = estimator(sample_weight_col="w" if weighted else None).fit(frame(spark))

    alone = trained_alone(EPOCHS, weighted=weighted)
    require_same_weights(fitted.getModel(), alone, atol=1e-6)
    assert len(fitted.getHistory()["loss"]) == EPOCHS
    # The checkpoints stay, the rows do not.
    (run,) = (tmp_path / "of one").iterdir()
    assert run.name == fitted.getRunId()
    assert {path.name for path in run.iterdir()} == {"checkpoints", "random_seed"}


def test_rows_that_a_column_names_validate(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    validates = [i % 4 == 0 for i in range(spark_frames.ROWS)]
    fitted = estimator(validation="validates").fit(frame(spark, validates=validates))

    rest = ~np.array(validates)
    alone = trained_alone(EPOCHS, rest)
    require_same_weights(fitted.getModel(), alone, atol=1e-6)
    x, y, _ = (array[~rest] for array in spark_frames.arrays())
    expected = alone.evaluate(x, y, verbose=0)
    assert fitted.getHistory()["val_loss"][-1] == pytest.approx(expected, rel=1e-5)


def test_a_share_of_the_rows_is_drawn(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    fitted = estimator(validation=0.3, epochs=1, optimizer="adam").fit(frame(spark))

    assert {"loss", "val_loss"} == set(fitted.getHistory())


def test_a_model_of_several_inputs_and_outputs(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    def build() -> keras.Model:
        keras.utils.set_random_seed(5)
        square, third = keras.Input((2, 2)), keras.Input((3,))
        hidden = keras.layers.Dense(4, activation="tanh")(
            keras.layers.Concatenate()([keras.layers.Flatten()(square), third])
        )
        outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in "yw"}
        return keras.Model([square, third], outputs)

    vectors = np.eye(3)[np.arange(spark_frames.ROWS) % 3]
    rows = frame(spark, v=[SparseVector(3, [i], [1.0]) for i in vectors.argmax(1)])
    fitted = estimator(
        model=build(),
        loss={"y": "mse", "w": "mae"},
        loss_weights=None,
        feature_cols=["x", "v"],
        label_cols=["w", "y"],  # Keras sorts the names of outputs.
    ).fit(rows)

    x, y, w = spark_frames.arrays()
    alone = build()
    alone.compile(keras.optimizers.SGD(0.05), {"y": "mse", "w": "mae"})
    x = [x.reshape(-1, 2, 2), vectors]
    alone.fit(x, {"y": y, "w": w}, batch_size=len(y), epochs=EPOCHS, verbose=0)
    require_same_weights(fitted.getModel(), alone, atol=1e-6)
    predicted = fitted.transform(rows).orderBy("id").collect()
    expected = alone.predict(x, verbose=0)
    for name in "yw":
        found = [row[f"{name}__output"] for row in predicted]
        np.testing.assert_allclose(found, expected[name][:, 0], atol=1e-5)


class _Sees(keras.callbacks.Callback):
    """What a rank has been told."""

    def on_train_end(self, logs: Any = None) -> None:
        assert os.environ["OF_THE_TEST"] == "here"
        assert self.params["steps"] == 3
        assert self.params["epochs"] == 2
        assert self.model.optimizer.iterations == 6

    def on_test_end(self, logs: Any = None) -> None:
        assert ring.size() == 2


def test_ranks_are_told_what_the_estimator_was(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    params = {
        "batch_size": 8,
        "callbacks": [_Sees()],
        "env": {"OF_THE_TEST": "here"},
        "epochs": 2,
        "gradient_compression": "fp16",
        "shuffle": False,
        "val_batch_size": 4,
        "validation": "validates",
        "validation_steps_per_epoch": 1,
    }
    rows = frame(spark, validates=[i % 8 == 0 for i in range(spark_frames.ROWS)])

    first, again = (
        estimator(**params, train_steps_per_epoch=3).fit(rows) for _ in range(2)
    )
    require_same_weights(first.getModel(), again.getModel(), atol=0)
    with pytest.raises(RankFailedError, match=r"has 4 batches of 8 rows.*are 5"):
        estimator(**params, train_steps_per_epoch=5).fit(rows)


class _Ends(keras.callbacks.Callback):
    """Rank 1 ends in the third epoch, or loses its worker there, once."""

    def __init__(self, how: str, directory: Path) -> None:
        super().__init__()
        self.how, self.mark = how, directory / "ended"

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != 2 or ring.rank() != 1 or self.mark.exists():
            return
        self.mark.touch()
        pid = os.getpid() if self.how == "dies" else functions_of_ranks.worker_pid()
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["dies", "loses its worker"])
def test_goes_on_with_the_last_checkpoint(
    spark: SparkSession,
    estimator: Callable[..., KerasEstimator],
    tmp_path_factory: pytest.TempPathFactory,
    how: str,
) -> None:
    batches = {"batch_size": 8, "optimizer": keras.optimizers.Adam(0.01)}
    whole = estimator(**batches).fit(frame(spark))
    ends = _Ends(how, tmp_path_factory.mktemp("marks"))
    batches |= {"run_id": "mine", "callbacks": [ends]}

    if how == "dies":
        with pytest.raises(RankFailedError, match="killed by SIGKILL") as caught:
            estimator(**batches).fit(frame(spark))
        assert caught.value.rank == 1
        fitted = estimator(**batches).fit(frame(spark))
    else:
        fitted = estimator(**batches, max_restarts=1).fit(frame(spark))

    assert ends.mark.exists()
    losses = fitted.getHistory()["loss"]
    # A rank that loses its worker may come to the end of its epoch before it is killed.
    assert len(losses) == 2 or (how != "dies" and len(losses) == 1)
    assert losses == whole.getHistory()["loss"][-len(losses) :]
    require_same_weights(fitted.getModel(), whole.getModel(), atol=0)


def test_epochs_are_those_of_all_fits_of_a_run(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    fits = [
        estimator(run_id="mine", epochs=epochs).fit(frame(spark))
        for epochs in (2, 2, 3)
    ]

    counts = [len(fitted.getHistory().get("loss", [])) for fitted in fits]
    assert counts == [2, 0, 1]
    first, again, more = fits
    require_same_weights(again.getModel(), first.getModel(), atol=0)
    require_same_weights(more.getModel(), trained_alone(3), atol=1e-6)


def test_a_run_that_goes_on_validates_on_the_same_rows(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    ordered = frame(spark).coalesce(1).sortWithinPartitions("id")
    # Weights stay as they are: the loss of validation says on which rows it is.
    params = {"run_id": "mine", "validation": 0.4, "random_seed": None}
    params |= {"optimizer": keras.optimizers.SGD(0.0)}

    losses = [
        estimator(epochs=epochs, **params).fit(ordered).getHistory()["val_loss"]
        for epochs in (1, 2, 3)
    ]

    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    assert losses[2] == pytest.approx(losses[0], rel=1e-6)
    with pytest.raises(ValueError, match=r"has drawn .* Received: random_seed=2147"):
        estimator(epochs=4, **params | {"random_seed": 2147483648}).fit(ordered)


def test_checkpoints_of_another_model_are_refused(
    spark: SparkSession, estimator: Callable[..., KerasEstimator]
) -> None:
    estimator(run_id="mine", epochs=1).fit(frame(spark))
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    with pytest.raises(RankFailedError, match=r"another model.*another `run_id`"):
        estimator(run_id="mine", model=other).fit(frame(spark))


def test_a_saved_estimator_fits_as_before(
    spark: SparkSession,
    estimator: Callable[..., KerasEstimator],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = str(tmp_path_factory.mktemp("saved"))
    estimator(num_proc=1).setEpochs(2).write().overwrite().save(path)

    loaded = KerasEstimator.load(path)

    assert loaded.getEpochs() == 2
    fitted = loaded.fit(frame(spark))
    require_same_weights(fitted.getModel(), trained_alone(2), atol=1e-6)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"feature_cols": ["z"]}, "no column 'z'. It has: id, x, y"),
        ({"feature_cols": ["x", "y"]}, "takes (4,) numbers of a row"),
        ({"label_cols": ["word"]}, "'word' is of type string"),
        ({"sample_weight_col": "gaps"}, "Column 'gaps' has a null"),
        ({"label_cols": ["y", "w"]}, "The model has 1 outputs"),
        ({"validation": "all"}, "no row to train on"),
    ],
)
def test_data_that_do_not_fit_the_model_are_told(
    spark: SparkSession,
    estimator: Callable[..., KerasEstimator],
    params: dict[str, Any],
    text: str,
) -> None:
    numbers = range(spark_frames.ROWS)
    more = {
        "word": ["a"] * len(numbers),
        "gaps": [None if i == 40 else float(i) for i in numbers],
        "all": [1] * len(numbers),
    }
    with pytest.raises(Exception, match=re.escape(text)):
        estimator(**params).fit(frame(spark, **more))


def test_one_file_of_many_is_not_enough(
    spark: SparkSession, estimator: Callable[..., KerasEstimator], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "of another host"
    store = Store(f"file://{elsewhere}", str(tmp_path / "of the driver"))

    with pytest.raises(ValueError, match=r"has written 64 rows .* finds 0 of them"):
        estimator(store=store).fit(frame(spark))
