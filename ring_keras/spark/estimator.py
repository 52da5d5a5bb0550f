"""Trains a Keras model on a data frame, as a stage of Spark ML."""

from __future__ import annotations

import datetime
import secrets
from typing import Any

import keras
from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from ring_keras.spark.columns import ModelColumns
from ring_keras.spark.job import run
from ring_keras.spark.keras_file import load_model, saved_model
from ring_keras.spark.model import KerasModel
from ring_keras.spark.params import EstimatorParams, with_accessors
from ring_keras.spark.saved_stage import StageReader, StageWriter
from ring_keras.spark.store import Store, StoreDirectory
from ring_keras.spark.train_task import TrainTask
from ring_keras.spark.written_rows import write_rows

__all__ = ["KerasEstimator"]

# What goes into the compiled model.
_COMPILED = ("optimizer", "loss", "loss_weights", "metrics")
_OF_RANKS = (
    "batch_size",
    "callbacks",
    "custom_objects",
    "epochs",
    "feature_cols",
    "gradient_compression",
    "label_cols",
    "sample_weight_col",
    "shuffle",
    "train_steps_per_epoch",
    "val_batch_size",
    "validation_steps_per_epoch",
    "verbose",
)


# Beside the checkpoints of a run.
_SEED = "random_seed"


@with_accessors
class KerasEstimator(Estimator, EstimatorParams, MLReadable, MLWritable):
    """Fits a Keras model to a data frame on the ranks of a barrier stage.

    `fit` writes the columns that it needs to the store, once, as Parquet. Each rank
    reads its share of them group by group, trains with `DistributedOptimizer`, and
    rank 0 saves a checkpoint after each epoch. A second `fit` with the same `run_id`
    goes on with the last one, and draws rows to validate on by the same seed. The rows
    are removed from the store when `fit` has come to its end.

    Args:
        params: By name; `explainParams()` describes them. `model`, `store`,
            `feature_cols` and `label_cols` are needed; so are `optimizer` and `loss`,
            unless the model is compiled. Each has a setter, as `setEpochs(3)`, and a
            getter.

    Raises:
        TypeError: If there is no such parameter, or a value is of another type.
        ValueError: If a value is not what it must be.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self._setDefault(
            **dict.fromkeys(param.name for param in self.params)
            | {
                "batch_size": 32,
                "callbacks": [],
                "custom_objects": {},
                "env": {},
                "epochs": 1,
                "max_restarts": 0,
                "shuffle": True,
                "verbose": 1,
            }
        )
        self.setParams(**params)

    def fit(self, dataset: DataFrame, params: Any = None) -> Any:
        """Trains.

        Args:
            dataset: A data frame with the columns.
            params: Parameters for this call, or several such dictionaries, with a
                model for each.

        Returns:
            A `KerasModel`, or a list of them.

        Raises:
            ValueError: If parameters contradict each other, the model or the data.
            RankFailedError: If a rank failed; the checkpoints are there.
            PySparkException: What Spark raises.
        """
        return super().fit(dataset, params)

    def compiled_model(self) -> bytes:
        """The model with its optimizer, loss and metrics, as a `.keras` file.

        Raises:
            ValueError: If any of it is missing.
        """
        options = self._options()
        model, given = options["model"], {name: options[name] for name in _COMPILED}
        if not any(given.values()):
            if not model.compiled:
                raise ValueError(
                    "KerasEstimator needs `optimizer` and `loss`, or a compiled model. "
                    "Received: neither"
                )
            return saved_model(model)
        if not (given["optimizer"] and given["loss"]):
            raise ValueError(
                "KerasEstimator needs both `optimizer` and `loss` to compile the model "
                "with; or nothing of the sort, and a compiled model. Received: "
                + ", ".join(f"{name}={value!r}" for name, value in given.items())
            )
        copy = load_model(saved_model(model), options["custom_objects"], compile=False)
        with keras.saving.custom_object_scope(options["custom_objects"]):
            # A new one: the user's keeps to the models that it has.
            optimizer = keras.optimizers.get(given["optimizer"])
            given["optimizer"] = type(optimizer).from_config(optimizer.get_config())
        copy.compile(**given)
        copy.optimizer.build(copy.trainable_variables)
        return saved_model(copy)

    def write(self) -> StageWriter:
        """For `write().overwrite().save(path)`; loaded again, it has a compiled model.

        Raises:
            ValueError: When it saves, if it has callbacks or custom objects.
        """
        return StageWriter(self)

    @classmethod
    def read(cls) -> StageReader:
        """For `load(path)`."""
        return StageReader(cls)

    def saved_parts(self) -> tuple[dict[str, Any], dict[str, Any], bytes]:
        """What a `StageWriter` writes: parameters, what else is known, the model."""
        compression = self.getOrDefault("gradient_compression")
        code = [n for n in ("callbacks", "custom_objects") if self.getOrDefault(n)]
        if compression is not None and not isinstance(compression, str):
            code.append("gradient_compression")
        if code:
            raise ValueError(
                f"`{'` and `'.join(code)}` are code, which is not saved. Clear them, "
                "and set them again when the estimator is loaded; classes that are "
                "registered with keras.saving.register_keras_serializable() need no "
                "`custom_objects`."
            )
        self._require("model")
        plain = {param.name: value for param, value in self._paramMap.items()}
        for name in ("callbacks", "custom_objects", "model", *_COMPILED):
            plain.pop(name, None)
        store = plain.get("store")
        if store is not None:
            plain["store"] = [store.spark_prefix, store.prefix]
        has_optimizer = self.getOrDefault("optimizer") or self.getOrDefault("loss")
        if has_optimizer or self.getOrDefault("model").compiled:
            return plain, {}, self.compiled_model()
        return plain, {}, saved_model(self.getOrDefault("model"))

    def take_saved(
        self, params: dict[str, Any], known: dict[str, Any], content: bytes
    ) -> None:
        """Becomes what was saved."""
        if params.get("store") is not None:
            params["store"] = Store(*params["store"])
        self.setParams(**params, model=load_model(content, {}, compile=True))

    def _fit(self, frame: DataFrame) -> KerasModel:
        options = self._options()
        store, run_id = options["store"], options["run_id"] or _new_run_id()
        checkpoints = StoreDirectory(store, f"{run_id}/checkpoints")
        seed = _seed_of_run(StoreDirectory(store, run_id), checkpoints, options)
        content = self.compiled_model()
        columns = ModelColumns(
            options["model"],
            options["feature_cols"],
            options["label_cols"],
            options["sample_weight_col"],
        )
        directory = f"{run_id}/rows"
        try:
            rows, validation_rows = write_rows(
                frame, columns.names(), options["validation"], seed, store, directory
            )
            for what, some in (("train", rows), ("validate", validation_rows)):
                if not some.count and (what == "train" or options["validation"]):
                    raise ValueError(
                        f"The data frame has no row to {what} on. Received: "
                        f"validation={options['validation']!r}"
                    )
            first = rows.first(columns.names())
            columns.example_of(first)  # Else every rank would say what is wrong.
            task = TrainTask(
                model=content,
                options={name: options[name] for name in _OF_RANKS},
                rows=rows,
                validation_rows=validation_rows,
                lengths={n: row.shape[1] for n, row in first.items() if row.ndim > 1},
                checkpoints=checkpoints,
                seed=seed,
            )
            results = run(
                task,
                num_proc=options["num_proc"],
                env=options["env"],
                max_restarts=options["max_restarts"],
                spark=frame.sparkSession,
            )
        finally:
            store.remove(directory)
        trained, history = results[0]
        model = KerasModel(
            trained,
            history,
            run_id,
            feature_cols=options["feature_cols"],
            label_cols=options["label_cols"],
            batch_size=options["val_batch_size"],
            custom_objects=options["custom_objects"],
        )
        if options["output_cols"] is not None:
            model.setParams(output_cols=options["output_cols"])
        return model

    def _options(self) -> dict[str, Any]:
        """All parameters that are needed are there, and none contradict."""
        self._require("model", "store", "feature_cols", "label_cols")
        options = {param.name: self.getOrDefault(param) for param in self.params}
        if options["validation"] is None:
            for name in ("val_batch_size", "validation_steps_per_epoch"):
                if options[name] is not None:
                    raise ValueError(
                        f"`{name}` says how to validate, and `validation` which rows: "
                        f"a column or a share. Received: {name}={options[name]!r}, "
                        "validation=None"
                    )
        options["val_batch_size"] = options["val_batch_size"] or options["batch_size"]
        options["gradient_compression"] = options["gradient_compression"] or "none"
        return options


def _seed_of_run(
    run: StoreDirectory, checkpoints: StoreDirectory, options: dict[str, Any]
) -> int:
    """What draws rows: with another one, a run would validate on what it trained on.

    Raises:
        ValueError: If the run goes on, and was begun with another one.
    """
    kept = run.read(_SEED) if _SEED in run.names() else b""
    begun = int(kept) if kept.isdigit() else None
    given: int | None = options["random_seed"]
    draws = isinstance(options["validation"], float)
    is_other = given is not None and begun not in (None, given)
    if is_other and draws and checkpoints.names():
        raise ValueError(
            f"This `run_id` has drawn the rows that validate with random_seed={begun}. "
            "Another one would draw rows on which it has trained: leave it out, or "
            f"give another `run_id`. Received: random_seed={given}"
        )
    seed = begun if given is None else given
    if seed is None:
        seed = secrets.randbits(31)
    if seed != begun:
        run.write(_SEED, str(seed).encode())
    return seed


def _new_run_id() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"run-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
