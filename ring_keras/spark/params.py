"""What an estimator and its model can be told, as parameters of Spark ML."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

import keras
from pyspark.ml.param import Param, Params, TypeConverters

from ring_keras.spark.store import Store

__all__ = ["EstimatorParams", "ModelParams", "NamedParams", "with_accessors"]

_Class = TypeVar("_Class", bound=type)


def with_accessors(cls: _Class) -> _Class:
    """Adds `setName` and `getName` for each parameter, as Spark ML's classes have."""
    for name in dir(cls):
        if not isinstance(getattr(cls, name), Param):
            continue
        camel = "".join(word.capitalize() for word in name.split("_"))

        def set_it(self: Any, value: Any, name: str = name) -> Any:
            return self.setParams(**{name: value})

        def get_it(self: Any, name: str = name) -> Any:
            return self.getOrDefault(name)

        for method, start in ((set_it, "set"), (get_it, "get")):
            if not hasattr(cls, start + camel):
                method.__name__ = start + camel
                method.__doc__ = getattr(cls, name).doc
                setattr(cls, start + camel, method)
    return cls


class NamedParams(Params):
    """Sets parameters by name, and says which there are."""

    def setParams(self, **params: Any) -> Any:  # noqa: N802  As in Spark ML.
        """Sets those that are given.

        Returns:
            This object.

        Raises:
            TypeError: If there is no such parameter, or a value is of another type.
            ValueError: If a value is not what it must be.
        """
        names = [param.name for param in self.params]
        for name in params:
            if name not in names:
                likely = difflib.get_close_matches(name, names, 1)
                hint = f"Did you mean {likely[0]!r}? " if likely else ""
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r}. {hint}It has: "
                    f"{', '.join(names)}"
                )
        return self._set(**params)

    def _require(self, *names: str) -> None:
        missing = [name for name in names if self.getOrDefault(name) in (None, [])]
        if missing:
            raise ValueError(
                f"{type(self).__name__} needs "
                + ", ".join(f"`{name}`" for name in missing)
            )


def _param(name: str, doc: str, convert: Callable[[Any], Any] | None = None) -> Any:
    return Param(Params._dummy(), name, doc, typeConverter=convert)


def _at_least(least: int, name: str) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = int(TypeConverters.toInt(value))
        if number < least:
            raise ValueError(
                f"`{name}` must be at least {least}. Received: {name}={value!r}"
            )
        return number

    return convert


def _instance_of(kind: type, instead: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"It must be {instead}. Received: {value!r}")
        return value

    return convert


def _to_validation(value: Any) -> str | float:
    if isinstance(value, str):
        return value
    share = float(TypeConverters.toFloat(value))
    if not 0 < share < 1:
        raise ValueError(
            "`validation` is the name of a column, or the share of rows that validate, "
            f"more than 0 and less than 1. Received: validation={value!r}"
        )
    return share


def _to_run_id(value: Any) -> str:
    name = str(TypeConverters.toString(value))
    if not name or name in (".", "..") or set(name) & set("/\\:?#"):
        raise ValueError(
            "`run_id` names a directory in the store: letters, digits, - _ and . will "
            f"do. Received: run_id={value!r}"
        )
    return name


class ModelParams(NamedParams):
    """Of both."""

    feature_cols = _param(
        "feature_cols",
        "columns of numbers, arrays or vectors: one for each input of the model, or "
        "several for a single one",
        TypeConverters.toListString,
    )
    label_cols = _param(
        "label_cols", "columns, one for each output", TypeConverters.toListString
    )
    output_cols = _param(
        "output_cols",
        "columns that transform adds, one for each output; by default <label>__output",
        TypeConverters.toListString,
    )
    batch_size = _param(
        "batch_size", "rows of a batch, of each rank", _at_least(1, "batch_size")
    )
    custom_objects = _param(
        "custom_objects",
        "by name, what the model is made of and Keras does not know",
        _instance_of(dict, "a dictionary of names and classes or functions"),
    )


class EstimatorParams(ModelParams):
    """Of an estimator."""

    num_proc = _param(
        "num_proc",
        "ranks; by default as many as Spark can run tasks at once",
        _at_least(1, "num_proc"),
    )
    model = _param(
        "model", "the model to train", _instance_of(keras.Model, "a keras.Model")
    )
    store = _param(
        "store",
        "where rows and checkpoints lie",
        _instance_of(Store, "a Store: Store.create('/shared/runs'), for instance"),
    )
    optimizer = _param("optimizer", "of Keras, or its name")
    loss = _param("loss", "as for Model.compile")
    loss_weights = _param("loss_weights", "of each output", TypeConverters.toListFloat)
    metrics = _param("metrics", "as for Model.compile")
    gradient_compression = _param(
        "gradient_compression", "how gradients travel between hosts, such as 'fp16'"
    )
    sample_weight_col = _param(
        "sample_weight_col", "column of sample weights", TypeConverters.toString
    )
    validation = _param(
        "validation",
        "column that is true, or not 0, for rows that validate; or their share, drawn",
        _to_validation,
    )
    callbacks = _param("callbacks", "of Keras, on every rank", TypeConverters.toList)
    val_batch_size = _param(
        "val_batch_size",
        "rows of a batch when validating; by default batch_size",
        _at_least(1, "val_batch_size"),
    )
    epochs = _param(
        "epochs", "in all, earlier fits of a run_id included", _at_least(1, "epochs")
    )
    verbose = _param("verbose", "of rank 0's fit, 0 to 2", TypeConverters.toInt)
    random_seed = _param(
        "random_seed",
        "of the rows' order, and of what else is drawn; by default another for each "
        "run_id",
        _at_least(0, "random_seed"),
    )
    shuffle = _param(
        "shuffle",
        "whether the rows have another order in each epoch",
        TypeConverters.toBoolean,
    )
    train_steps_per_epoch = _param(
        "train_steps_per_epoch",
        "batches of a rank in an epoch; by default all",
        _at_least(1, "train_steps_per_epoch"),
    )
    validation_steps_per_epoch = _param(
        "validation_steps_per_epoch",
        "batches of a rank in validation; by default all",
        _at_least(1, "validation_steps_per_epoch"),
    )
    run_id = _param(
        "run_id",
        "of the directory in the store; a second fit goes on with the first one's "
        "checkpoint",
        _to_run_id,
    )
    env = _param(
        "env",
        "variables that every rank's environment gets",
        _instance_of(dict, "a dictionary of strings"),
    )
    max_restarts = _param(
        "max_restarts",
        "how often ranks start again from the checkpoint after an executor was lost",
        _at_least(0, "max_restarts"),
    )
