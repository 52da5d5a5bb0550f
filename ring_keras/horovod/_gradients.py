"""Optimizers and tapes, with Horovod's arguments.

`device_dense` and `device_sparse` are taken and mean nothing: a collective runs where
its tensor is. So are `name` and `use_locking` for optimizers of Keras 3, which keep
their names and have no locks. `sparse_as_dense=False` leaves it to
`ring_keras.DistributedOptimizer` to make sparse gradients dense where that is
cheaper and changes no update.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from ring_keras.horovod._absent import refuse_unless_default
from ring_keras.horovod._compression import Compression, native_or_own
from ring_keras.horovod._keras_2 import (
    distribute,
    is_tf_keras,
    is_tf_keras_optimizer,
    without_tf_keras,
)
from ring_keras.horovod._session_optimizer import SessionOptimizer
from ring_keras.horovod._tape import GradientTape
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.values.reduce_op import Average, ReduceOp

__all__ = [
    "DistributedGradientTape",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "distributed_optimizer",
    "load_model",
]

Groups = int | Sequence[Sequence[Any]] | None


def distributed_optimizer(
    optimizer: Any,
    *,
    name: str | None = None,
    use_locking: bool = False,
    compression: Any = Compression.none,
    sparse_as_dense: bool,
    num_groups: int = 0,
    groups: Groups = None,
    **options: Any,
) -> Any:
    """See `ring_keras.DistributedOptimizer`."""
    options |= _grouping(num_groups, groups) | {
        "compression": native_or_own(compression),
        "sparse_as_dense": sparse_as_dense or None,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return SessionOptimizer(optimizer, name, use_locking, **options)
    if is_tf_keras_optimizer(optimizer):
        return distribute(optimizer, **options)
    if not isinstance(optimizer, (keras.optimizers.Optimizer, str)):
        raise TypeError(
            "DistributedOptimizer takes an optimizer of Keras 3, of tf_keras, or of "
            "tf.compat.v1.train. "
            f"Received: {type(optimizer).__module__}.{type(optimizer).__name__}"
        )
    return ring.DistributedOptimizer(optimizer, **options)


def PartialDistributedOptimizer(  # noqa: N802  Named like the class it stands for.
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """See `ring_keras.DistributedOptimizer`: with layers of each rank's own."""
    return distributed_optimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
    )


def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> GradientTape:
    """See `ring_keras.DistributedGradientTape`."""
    return PartialDistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> GradientTape:
    """The same, with layers whose gradients stay on their rank."""
    layers, variables = without_tf_keras(local_layers)
    tape = GradientTape(
        gradtape,
        op,
        compression=native_or_own(compression),
        sparse_as_dense=sparse_as_dense or None,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        local_layers=layers,
        scale_local_gradients=scale_local_gradients,
        **_grouping(num_groups, groups),
    )
    for variable in variables:
        tape.register_local_source(variable)
    return tape


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Loads a model and distributes the optimizer it was compiled with.

    Args:
        filepath: See `keras.models.load_model`.
        custom_optimizers: Classes of optimizers that the file may name.
        custom_objects: See `keras.models.load_model`.
        compression: See `ring_keras.DistributedOptimizer`.
        legacy_opts: False. Keras 3 has no legacy optimizers.

    Returns:
        The model.
    """
    refuse_unless_default(
        "legacy_opts", legacy_opts, False, "Keras 3 has no legacy optimizers."
    )
    by_name = {cls.__name__: cls for cls in custom_optimizers or ()}
    load = (tf.keras if is_tf_keras() else keras).models.load_model
    model = load(filepath, by_name | (custom_objects or {}))
    if model.optimizer is not None:
        distributed_optimizer(
            model.optimizer,
            op=Average,
            process_set=global_process_set,
            compression=compression,
            sparse_as_dense=False,
        )
    return model


def _grouping(num_groups: int, groups: Groups) -> dict[str, Any]:
    """Horovod takes a number of groups for `groups` too."""
    is_number = isinstance(groups, int) and groups > 0
    if not (is_number or groups is None or isinstance(groups, (list, tuple))):
        raise ValueError(
            "`groups` must be a positive number of groups, or a list of lists of "
            f"variables. Received: groups={groups!r}"
        )
    if isinstance(groups, int):
        return {"num_groups": groups, "groups": None}
    return {"num_groups": num_groups, "groups": groups}
