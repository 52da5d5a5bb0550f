"""Fits a pipeline with a Keras model to a data frame, on two ranks.

    pip install 'ring-keras[spark,examples]'
    python examples/spark_estimator.py

With `--master=spark://HOST:7077 --store=...` it uses that cluster, whose executors must
all reach the store.
"""

import tempfile

import keras
from absl import app, flags
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from sklearn.datasets import load_digits

from ring_keras.spark import KerasEstimator, Store

FLAGS = flags.FLAGS
flags.DEFINE_string("master", "local[2]", "Master of the Spark cluster.")
flags.DEFINE_string("store", None, "Directory or URL; a temporary directory if none.")
flags.DEFINE_integer("epochs", 8, "Epochs to train.", lower_bound=1)

PIXELS = [f"pixel{i}" for i in range(64)]


def digits(session: SparkSession) -> DataFrame:
    """A column for each pixel, from 0 to 1, and one for the digit."""
    images, labels = load_digits(return_X_y=True)
    rows = [
        (*(image / 16).tolist(), int(label))
        for image, label in zip(images, labels, strict=True)
    ]
    return session.createDataFrame(rows, [*PIXELS, "digit"])


def build_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),  # What 64 numbers of a row become.
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main(_: list[str]) -> None:
    """Fits, and counts what is right of the rest of the rows."""
    session = SparkSession.builder.master(FLAGS.master).getOrCreate()
    train, test = digits(session).randomSplit([0.8, 0.2], seed=1)
    estimator = KerasEstimator(
        num_proc=2,
        model=build_model(),
        store=Store.create(FLAGS.store or tempfile.mkdtemp()),
        optimizer=keras.optimizers.Adam(5e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["image"],
        label_cols=["digit"],
        epochs=FLAGS.epochs,
        random_seed=1,
        verbose=0,
    )
    assembler = VectorAssembler(inputCols=PIXELS, outputCol="image")
    fitted = Pipeline(stages=[assembler, estimator]).fit(train)

    likely = vector_to_array("digit__output")
    guess = F.array_position(likely, F.array_max(likely)) - 1
    right = fitted.transform(test).select((guess == F.col("digit")).cast("double"))
    (accuracy,) = right.agg(F.avg(right[0])).first()
    session.stop()
    print(f"test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    app.run(main)
