"""What each rank of an estimator's job does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_files import BackupFiles
from ring_keras.callbacks.broadcast_global_variables import BroadcastGlobalVariables
from ring_keras.callbacks.metric_average import MetricAverage
from ring_keras.data.shard_parquet import shard_parquet
from ring_keras.fit.distributed_optimizer import DistributedOptimizer
from ring_keras.job.topology import rank, size
from ring_keras.lifecycle.membership import init
from ring_keras.spark.columns import ModelColumns
from ring_keras.spark.keras_file import load_model, saved_model
from ring_keras.spark.store import StoreDirectory
from ring_keras.spark.written_rows import WrittenRows
from ring_keras.values.objects import broadcast_object

__all__ = ["TrainTask"]


@dataclass(frozen=True)
class TrainTask:
    """A `fit` on a rank's share of the rows.

    Attributes:
        model: A compiled one, as `saved_model` has it.
        options: The estimator's parameters, by name.
        rows: To train on.
        validation_rows: Perhaps none.
        lengths: Of the arrays in columns of arrays, by the columns' names.
        checkpoints: Where rank 0 saves, and looks for what was saved before.
        seed: Of the order of the rows, and of what else is drawn.
    """

    model: bytes
    options: Mapping[str, Any]
    rows: WrittenRows
    validation_rows: WrittenRows
    lengths: Mapping[str, int]
    checkpoints: StoreDirectory
    seed: int

    def __call__(self) -> tuple[bytes, dict[str, list[float]]] | None:
        """Trains.

        Returns:
            Rank 0's model and history; None on other ranks.

        Raises:
            ValueError: If the data are too few, or do not fit the model.
        """
        init()
        keras.utils.set_random_seed(self.seed)
        options = self.options
        model = load_model(self.model, options["custom_objects"], compile=True)
        DistributedOptimizer(
            model.optimizer, compression=options["gradient_compression"]
        )
        columns = ModelColumns(
            model,
            options["feature_cols"],
            options["label_cols"],
            options["sample_weight_col"],
            self.lengths,
        )
        checkpoint = _Checkpoint(BackupFiles(self.checkpoints))
        epochs_done = broadcast_object(checkpoint.restore(model), 0)
        train = _batches(
            self.rows,
            columns,
            options["batch_size"],
            options["train_steps_per_epoch"],
            seed=self.seed if options["shuffle"] else None,
            remainder="drop",
        )
        validation = None
        if self.validation_rows.count:
            validation = _batches(
                self.validation_rows,
                columns,
                options["val_batch_size"],
                options["validation_steps_per_epoch"],
                seed=None,
                remainder="keep",
            )
        history = model.fit(
            train,
            validation_data=validation,
            initial_epoch=epochs_done,
            epochs=options["epochs"],
            verbose=options["verbose"] if rank() == 0 else 0,
            shuffle=False,
            callbacks=[
                BroadcastGlobalVariables(0),
                MetricAverage(),
                *options["callbacks"],
                checkpoint,
            ],
        ).history
        if rank() != 0:
            return None
        plain = {name: [float(v) for v in values] for name, values in history.items()}
        return saved_model(model), plain


class _Checkpoint(keras.callbacks.Callback):
    """Saves on rank 0 after each epoch."""

    def __init__(self, files: BackupFiles) -> None:
        super().__init__()
        self._files = files

    def restore(self, model: keras.Model) -> int:
        """Takes up what was saved, on rank 0; how many epochs that has had."""
        if rank() != 0:
            return 0
        try:
            noted = self._files.restore(model)
        except ValueError as error:
            raise ValueError(
                "The checkpoints of this `run_id` are those of another model. Give "
                "this one another `run_id`."
            ) from error
        return 0 if noted is None else int(noted["epochs"])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves."""
        if rank() == 0:
            steps = internals.steps_done_of(self.model) or 0
            weights = internals.weights_file(self.model)
            self._files.save(weights, steps, {"epochs": epoch + 1})


def _batches(
    rows: WrittenRows,
    columns: ModelColumns,
    batch_size: int,
    steps: int | None,
    *,
    seed: int | None,
    remainder: Literal["drop", "keep"],
) -> tf.data.Dataset:
    """This rank's batches; see `shard_parquet`.

    Args:
        rows: Of all ranks.
        columns: What examples are made of.
        batch_size: Rows in each.
        steps: How many; None: as many as there are.
        seed: Of the order; None: as they lie.
        remainder: Whether a few rows are left out, so that all ranks have as many.
    """
    if rows.count < size():
        what = "train" if remainder == "drop" else "validate"
        raise ValueError(
            f"There are {rows.count} rows to {what} on, fewer than the {size()} ranks."
        )
    dataset = (
        shard_parquet(
            [rows.store.path(name) for name in rows.files],
            columns=columns.names(),
            seed=seed,
            remainder=remainder,
            filesystem=rows.store.file_system(),
        )
        .batch(batch_size)
        .map(columns.example_of)
    )
    there_are = int(dataset.cardinality())
    if steps is not None and steps > there_are:
        raise ValueError(
            f"A rank has {there_are} batches of {batch_size} rows, and the steps that "
            f"were asked for are {steps}."
        )
    return dataset.take(steps or there_are).prefetch(2)
