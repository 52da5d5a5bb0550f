"""Makes a Keras optimizer average its gradients over the ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.backends.common.fit import prepare_fits
from ring_keras.backends.common.framework import framework
from ring_keras.backends.common.hook import GradientHook
from ring_keras.backends.common.reducer import Options
from ring_keras.config import keras_backend
from ring_keras.job.process_set import ProcessSet, global_process_set
from ring_keras.states.local_variables import layers_of, refuse_global_clipnorm
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["DistributedOptimizer"]

# Arguments that the back end TensorFlow has besides, and what they are by default.
_OF_TENSORFLOW: dict[str, Any] = {
    "average_aggregated_gradients": False,
    "backward_passes_per_step": 1,
    "fused_update": True,
    "gradient_predivide_factor": 1.0,
    "groups": None,
    "num_groups": 0,
    "shard_state": False,
    "sparse_as_dense": None,
    "sync_every": None,
}


def DistributedOptimizer(  # noqa: N802  Named as on the back end TensorFlow.
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    process_set: ProcessSet | None = None,
    bucket_size_bytes: int | None = None,
    compression: Compression | str = Compression.none,
    local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
    **others: Any,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer apply the average of all ranks' gradients, on torch and JAX.

    As `ring_keras.DistributedOptimizer` on the back end TensorFlow, with fewer
    arguments. The optimizer stays the same object, of the same class. Gradients are
    reduced once per weight update, after gradient accumulation and before clipping.

    `fit` does the rest by itself: see docs/keras.md, "Training on torch and JAX".

    Args:
        optimizer: A Keras optimizer, or the name of one.
        op: `AVERAGE`, which is right in `fit`; or `SUM`, for your own loop with a loss
            that is a sum.
        process_set: Ranks that train together. Defaults to all.
        bucket_size_bytes: Gradients are reduced in buckets of about this size.
            Defaults to `RING_KERAS_BUCKET_SIZE_BYTES`.
        compression: The type in which float32 gradients travel between hosts: "none",
            "bf16" or "fp16".
        local_layers: Layers whose weights each rank trains for itself: their
            gradients are not reduced.
        scale_local_gradients: Whether the gradients of `local_layers` are weighted
            like the rank's share of an average. They are then the gradients of the
            mean of all ranks' losses.
        others: Arguments that the back end TensorFlow has: with any value but the
            default they are errors.

    Returns:
        `optimizer`.

    Raises:
        ValueError: If an argument is wrong, or not there on this back end.
        TypeError: If there is no such argument.
    """
    optimizer = keras.optimizers.get(optimizer)
    _refuse(others)
    options = Options(
        _op(op),
        process_set or global_process_set,
        bucket_size_bytes,
        _wire_dtype(compression),
        layers_of(local_layers),
        scale_local_gradients,
    )
    hook = GradientHook.of(optimizer)
    if hook is not None:
        if hook.options != options:
            raise ValueError(
                f"[RK420] {type(optimizer).__name__} '{optimizer.name}' is a "
                "distributed optimizer already, with other options. Give them the "
                f"first time, to a new optimizer. Received: {options}, and before "
                f"{hook.options}"
            )
        return optimizer
    if internals.is_wrapper(optimizer):
        raise ValueError(
            f"[RK660] With Keras's back end {keras_backend().name} "
            "ring_keras.DistributedOptimizer takes an optimizer that updates weights "
            "itself. Give it the optimizer within. "
            f"Received: {type(optimizer).__name__}"
        )
    if options.local_layers:
        refuse_global_clipnorm(optimizer)
    prepare_fits()
    framework().hook(optimizer, options).install()
    return optimizer


def _refuse(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name not in _OF_TENSORFLOW:
            raise TypeError(
                f"ring_keras.DistributedOptimizer has no argument '{name}'."
            )
        default = _OF_TENSORFLOW[name]
        if value is not default and value != default:
            raise ValueError(
                f"[RK660] ring_keras.DistributedOptimizer({name}={value!r}) is not "
                f"there yet with Keras's back end {keras_backend().name}. Leave it "
                "out, or set KERAS_BACKEND=tensorflow."
            )


def _op(op: ReduceOp | str) -> ReduceOp:
    try:
        read = ReduceOp(op)
    except ValueError:
        read = None
    if read not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise ValueError(
            f"[RK660] With Keras's back end {keras_backend().name} "
            "ring_keras.DistributedOptimizer takes "
            f"op=ring_keras.Average or ring_keras.Sum. Received: op={op!r}"
        )
    return read


def _wire_dtype(compression: Any) -> str | None:
    names = {"none": None, "bf16": "bfloat16", "fp16": "float16"}
    if str(compression) not in names:
        raise ValueError(
            f"[RK660] With Keras's back end {keras_backend().name} "
            "ring_keras.DistributedOptimizer takes "
            "compression='none', 'bf16' or 'fp16'. "
            f"Received: compression={compression!r}"
        )
    return names[str(compression)]
