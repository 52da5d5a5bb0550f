"""`horovod.spark.keras`: a Keras model as stages of Spark ML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import keras

import ring_keras.spark
from ring_keras.horovod._absent import absent, refuse_unless_default
from ring_keras.horovod._compression import native_or_own
from ring_keras.spark import KerasModel, Store

__all__ = ["KerasEstimator", "KerasModel"]

_NO_BACKEND = "Spark runs the ranks: give num_proc and backend_env."
_IN_STAGES = "Transform the data frame in a stage before."
_LABELS = "Labels get the shape of the model's output, if they have as many numbers."
_SAVES = "Each epoch has a checkpoint; others are `callbacks`, which every rank runs."
_READS = "Rows are read while the steps before are trained."


class KerasEstimator(ring_keras.spark.KerasEstimator):
    """`ring_keras.spark.KerasEstimator`, with Horovod's arguments.

    Args:
        num_proc: Number of ranks; by default as many as Spark can run tasks at once.
        model: A functional or a sequential model of Keras.
        backend: None.
        store: Where rows and checkpoints lie.
        custom_objects: By name, what Keras does not know.
        optimizer: Of Keras; by default that of the compiled model.
        loss: As for `compile`.
        loss_weights: Of each output.
        sample_weight_col: Column of sample weights.
        gradient_compression: One of `hvd.Compression`'s.
        metrics: As for `compile`.
        feature_cols: Columns, one for each of the model's inputs.
        label_cols: Columns, one for each output.
        validation: A column, or the share of rows that validate.
        callbacks: Of Keras, on every rank.
        batch_size: Rows of a batch, of each rank; 32 by default.
        val_batch_size: The same when validating.
        epochs: How many, earlier fits with the same run_id included.
        verbose: Of rank 0's `fit`.
        random_seed: Of the rows' order, and of what else is drawn.
        shuffle_buffer_size: 0: rows are not shuffled; else ignored.
        shuffle: Whether they are.
        partitions_per_process: Ignored: the data frame's partitions are written.
        run_id: Of a run in the store, which a second fit goes on with.
        train_steps_per_epoch: Batches of a rank in an epoch; by default all.
        validation_steps_per_epoch: The same in validation.
        transformation_fn: None.
        train_reader_num_workers: Ignored.
        val_reader_num_workers: Ignored.
        reader_pool_type: Ignored.
        label_shapes: None.
        checkpoint_callback: None: there are checkpoints without one.
        inmemory_cache_all: False.
        backend_env: Variables that every rank's environment gets.
        use_gpu: Whether ranks see GPUs.
        mp_start_method: Ignored.

    Raises:
        AbsentError: If an argument asks for what is not there.
        TypeError: If a value is of another type.
        ValueError: If a value is not what it must be.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        model: keras.Model | None = None,
        backend: Any = None,
        store: Store | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        optimizer: keras.optimizers.Optimizer | str | None = None,
        loss: Any = None,
        loss_weights: Sequence[float] | None = None,
        sample_weight_col: str | None = None,
        gradient_compression: Any = None,
        metrics: Sequence[Any] | None = None,
        feature_cols: Sequence[str] | None = None,
        label_cols: Sequence[str] | None = None,
        validation: str | float | None = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        batch_size: int | None = None,
        val_batch_size: int | None = None,
        epochs: int | None = None,
        verbose: int | None = None,
        random_seed: int | None = None,
        shuffle_buffer_size: int | None = None,
        shuffle: bool = True,
        partitions_per_process: int | None = None,
        run_id: str | None = None,
        train_steps_per_epoch: int | None = None,
        validation_steps_per_epoch: int | None = None,
        transformation_fn: Callable[..., Any] | None = None,
        train_reader_num_workers: int | None = None,
        val_reader_num_workers: int | None = None,
        reader_pool_type: str = "thread",
        label_shapes: Any = None,
        checkpoint_callback: Any = None,
        inmemory_cache_all: bool = False,
        backend_env: Mapping[str, str] | None = None,
        use_gpu: bool = True,
        mp_start_method: str | None = None,
    ) -> None:
        refuse_unless_default("backend", backend, None, _NO_BACKEND)
        refuse_unless_default("transformation_fn", transformation_fn, None, _IN_STAGES)
        refuse_unless_default("label_shapes", label_shapes, None, _LABELS)
        refuse_unless_default("checkpoint_callback", checkpoint_callback, None, _SAVES)
        refuse_unless_default("inmemory_cache_all", inmemory_cache_all, False, _READS)
        env = dict(backend_env or {})
        if not use_gpu:
            env["CUDA_VISIBLE_DEVICES"] = "-1"
        if gradient_compression is not None:
            gradient_compression = native_or_own(gradient_compression)
        if optimizer is None and loss is not None and model is not None:
            optimizer = model.optimizer if model.compiled else None
        params = {
            "batch_size": batch_size,
            "callbacks": callbacks,
            "custom_objects": custom_objects,
            "env": env or None,
            "epochs": epochs,
            "feature_cols": feature_cols,
            "gradient_compression": gradient_compression,
            "label_cols": label_cols,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "model": model,
            "num_proc": num_proc,
            "optimizer": optimizer,
            "random_seed": random_seed,
            "run_id": run_id,
            "sample_weight_col": sample_weight_col,
            "shuffle": shuffle and shuffle_buffer_size != 0,
            "store": store,
            "train_steps_per_epoch": train_steps_per_epoch,
            "val_batch_size": val_batch_size,
            "validation": validation or None,
            "validation_steps_per_epoch": validation_steps_per_epoch,
            "verbose": verbose,
        }
        super().__init__(
            **{name: value for name, value in params.items() if value is not None}
        )

    def fit_on_parquet(self, *_: Any, **__: Any) -> NoReturn:
        """Horovod's, for rows that its store has already.

        Raises:
            AbsentError: Always.
        """
        absent(
            "spark.keras.KerasEstimator.fit_on_parquet",
            "Give fit() the data frame of spark.read.parquet(path), or train on the "
            "files with ring_keras.spark.run() and ring_keras.data.shard_parquet().",
        )
