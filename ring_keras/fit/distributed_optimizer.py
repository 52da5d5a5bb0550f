"""Makes a Keras optimizer average its gradients over the ranks."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.prepared_fits import prepare_fits
from ring_keras.fit.diloco import DiLoCo
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.hooking import install_hook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.shardable import (
    SHARDABLE,
    can_shard,
    can_shard_inside,
)
from ring_keras.values.compression import Compression, Compressor, PowerSGD
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802  Named like the class it was in Horovod.
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    process_set: ProcessSet | None = None,
    bucket_size_bytes: int | None = None,
    compression: Compression | Compressor | PowerSGD | str = Compression.none,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    sparse_as_dense: bool | None = None,
    num_groups: int = 0,
    groups: Sequence[Sequence[Any]] | None = None,
    local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
    shard_state: bool = False,
    fused_update: bool = True,
    sync_every: int | None = None,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer apply the average of all ranks' gradients.

    The optimizer stays the same object, of the same class, and saves, loads and
    prints as before. Gradients are reduced once per weight update, after gradient
    accumulation and before clipping. So clipping and the update get the gradients
    that one process with the global batch would have.

    `fit` adds a `ring_keras.callbacks.Distributed` without arguments, which does the
    rest: all ranks begin with the same variables, metrics cover the data of all
    ranks, an uneven last batch is weighted by its size, and a step that reduces
    nothing raises an error. XLA is turned off if TensorFlow is older than 2.20,
    because collectives have no XLA kernels there.

    With these losses, training equals that of one process with the global batch:

    - the mean over the examples (Keras's default, `"mean"`), also with sample
      weights;
    - the sum over the examples, for losses that are given to `compile`;
    - a single loss with a single array of sample weights and
      `reduction="mean_with_sample_weight"`.

    With masks (the output of a model of sequences with `mask_zero=True` or
    `Masking`) it is close, but not exact: Keras divides by the number of unmasked
    entries of a rank's batch, which only the forward pass knows. All ranks still
    apply the same update.

    A copy of the optimizer (`keras.models.load_model`, `copy.deepcopy`) is an
    ordinary optimizer again: pass it to this function, or give `fit` a
    `ring_keras.callbacks.Distributed`.

    Examples:
        >>> optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        >>> model.compile(optimizer, loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(*mine, batch_size=8, epochs=2, verbose=0)
        >>> apart = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), sync_every=4)
        >>> model.compile(apart, loss="mse")  # Weights are averaged every 4 updates.

    Args:
        optimizer: A Keras optimizer, or the name of one. A second call with the
            same optimizer and the same arguments has no effect.
        op: How to combine the ranks' gradients.

            - `AVERAGE` is right in `fit`, also for losses that sum over their
              batch.
            - `SUM` is for your own loop with a loss that is a sum.
            - `ADASUM` combines the gradients of each variable separately, needs no
              larger learning rate with more ranks, and does not overlap with the
              backward pass.
        process_set: Ranks that train together. Defaults to all.
        bucket_size_bytes: Gradients are reduced in buckets of about this size.
            Defaults to `RING_KERAS_BUCKET_SIZE_BYTES`.
        compression: The type in which float32 gradients travel between hosts; the
            same on every rank. With `ADASUM`, also within a host. Or
            `Compression.powersgd()`, which sends less. Or your own class or object
            with two methods: `compress(tensor)` returns the tensor to reduce in place
            of a dense gradient, and a context; `decompress(reduced, context)` returns
            the gradient.
        gradient_predivide_factor: An average divides by this factor before the
            sum, and by the number of ranks over this factor after it, so that
            neither the sum nor its parts leave the range of a 16-bit type. Sums are
            computed in float32 or wider in any case.
        backward_passes_per_step: The number of batches whose gradients each rank
            accumulates before one reduction and one update. It sets the optimizer's
            `gradient_accumulation_steps`, but adds the gradients up; Keras averages
            them. A saved file keeps only that number.
        average_aggregated_gradients: Whether to average them as Keras does.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense before they are
            reduced, or are gathered. By default they are made dense if that costs
            less and the update is the same: with SGD without clipping, and if the
            number of slices is known when the step is traced. Other optimizers of
            Keras square or clip slice by slice, so for an index that occurs twice a
            dense gradient gives another update.
        num_groups: The number of buckets, each with about the same number of
            variables. 0: buckets by size.
        groups: Lists of variables. The gradients of each list are one bucket; other
            gradients are put into buckets by size.
        local_layers: Layers whose weights each rank trains for itself: their
            gradients are not reduced.
        scale_local_gradients: Whether the gradients of `local_layers` are divided by
            the number of ranks, or more exactly, weighted like the rank's share of
            an average. They are then the gradients of the mean of all ranks' losses.
        shard_state: Whether the ranks divide what the optimizer keeps for the weights,
            such as Adam's moments. Each weight, or piece of one, belongs with its state
            to one rank, which updates it and sends it to the others; ranks get about
            the same number of bytes. The weights are those of training without it, bit
            for bit on one or two hosts if XLA does not compile the step. For optimizers
            of Keras whose state is of single weights: SGD, Adam, AdamW, Nadam, Adamax,
            RMSprop, Adagrad, Adadelta, Adafactor, Ftrl, Lion, Lamb and Muon, also in a
            LossScaleOptimizer or a MultiOptimizer. Files have the whole state, so all
            ranks of the process set must save, and load, together.
        fused_update: Whether one op updates a variable on CPUs, with one rank too,
            where Keras has several. For SGD with momentum, Adam and AdamW of Keras, not
            where XLA compiles the step. Adam and AdamW give the same bits; SGD may
            differ in the last bits in graphs.
        sync_every: Each rank applies its own gradients, and the ranks average their
            weights after this many updates (local SGD), for networks that are slow.
            That takes an optimizer around this one, as `DiLoCo` is, which says more;
            it goes with none of the other arguments. None: gradients are averaged.

    Returns:
        `optimizer`; with `sync_every`, a new one around it.

    Raises:
        ValueError: If an argument is wrong, or contradicts another one, the optimizer,
            or an earlier call with the same optimizer.
    """
    optimizer = keras.optimizers.get(optimizer)
    options = ReductionOptions.read(
        op=op,
        process_set=process_set,
        bucket_size_bytes=bucket_size_bytes,
        compression=compression,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        sparse_as_dense=sparse_as_dense,
        num_groups=num_groups,
        groups=groups,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
        shard_state=shard_state,
        fused_update=fused_update,
    )
    if sync_every is not None:
        if options != ReductionOptions():
            raise ValueError(
                "[RK343] "
                "with `sync_every` no gradients are reduced, so it goes with none of "
                "the options of that. Leave out one or the other. Received: "
                f"sync_every={sync_every}, "
                + ", ".join(_differences(options, ReductionOptions()))
            )
        return DiLoCo(optimizer, keras.optimizers.SGD(1.0), sync_every=sync_every)
    _refuse_other_options(optimizer, options)
    if OptimizerHook.of(optimizer) is not None:
        return optimizer
    plain_optimizers = _plain_optimizers(optimizer)
    if backward_passes_per_step > 1 and not plain_optimizers:
        raise ValueError(
            "[RK420] "
            "`backward_passes_per_step` needs to know the optimizers inside "
            f"{type(optimizer).__name__}, which it makes later: make those with "
            f"gradient_accumulation_steps={backward_passes_per_step}."
        )
    if shard_state:
        _require_shardable(optimizer, plain_optimizers)
    for plain in plain_optimizers:
        options.require_clipping_apart(plain)
        if backward_passes_per_step > 1:
            _accumulate(plain, backward_passes_per_step)
    install_hook(optimizer, options)
    prepare_fits()
    return optimizer


def _require_shardable(
    optimizer: keras.optimizers.Optimizer,
    plain_optimizers: list[keras.optimizers.Optimizer],
) -> None:
    """Where each variable's update is known to need that variable's state alone."""
    wrong = next(
        (one for one in _wrappers(optimizer) if not can_shard_inside(one)),
        next((one for one in plain_optimizers if not can_shard(one)), None),
    )
    if wrong is None and not plain_optimizers:
        raise ValueError(
            "[RK832] "
            "`shard_state` needs to know the optimizers inside "
            f"{type(optimizer).__name__}, which a function makes while it is built: "
            "give it a keras.optimizers.OptimizerMap, or build it before."
        )
    if wrong is not None:
        raise ValueError(
            "[RK336] "
            "`shard_state` does not work with this class of optimizer, for now, but "
            f"with {', '.join(SHARDABLE)} of Keras, not with classes that are made of "
            "them. "
            f"Received: {type(wrong).__module__}.{type(wrong).__name__}"
        )


def _refuse_other_options(
    optimizer: keras.optimizers.Optimizer, options: ReductionOptions
) -> None:
    """Where the optimizer, or one in it, reduces already, and in another way."""
    hook = OptimizerHook.of(optimizer)
    if hook is not None and hook.options == options:
        return
    if hook is not None:
        differences = [
            f"{ours}, and before {theirs}"
            for ours, theirs in zip(
                _differences(options, hook.options),
                _differences(hook.options, options),
                strict=True,
            )
        ]
        raise ValueError(
            "[RK420] "
            f"{type(optimizer).__name__} '{optimizer.name}' is a distributed "
            "optimizer already, with other options (a callback of ring_keras makes "
            "it one with the defaults). Give them the first time, to a new "
            f"optimizer. Received: {'; '.join(differences)}"
        )
    for inner in internals.inner_optimizers(optimizer):
        _refuse_other_options(inner, options)


def _differences(options: ReductionOptions, others: ReductionOptions) -> list[str]:
    """What is not as in `others`."""
    return [
        f"{field.name}={getattr(options, field.name)!r}"
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(others, field.name)
    ]


def _plain_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Those that update weights: itself, or the ones in it."""
    if not internals.is_wrapper(optimizer):
        return [optimizer]
    return [
        plain
        for inner in internals.inner_optimizers(optimizer)
        for plain in _plain_optimizers(inner)
    ]


def _wrappers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Those that hand gradients to others: itself, if it does, and ones in it."""
    if not internals.is_wrapper(optimizer):
        return []
    inner = internals.inner_optimizers(optimizer)
    return [optimizer, *(found for one in inner for found in _wrappers(one))]


def _accumulate(optimizer: keras.optimizers.Optimizer, passes: int) -> None:
    steps = optimizer.gradient_accumulation_steps
    if steps == passes:
        return
    if steps:
        raise ValueError(
            "[RK420] "
            "`backward_passes_per_step` and the optimizer's "
            "`gradient_accumulation_steps` are the same thing: give one of them. "
            f"Received: backward_passes_per_step={passes}, "
            f"gradient_accumulation_steps={steps}"
        )
    if optimizer.built:
        raise ValueError(
            "[RK420] "
            "`backward_passes_per_step` comes too late: the optimizer has its "
            "variables already. Give it before training, or make the optimizer with "
            f"gradient_accumulation_steps={passes}. "
            f"Received: backward_passes_per_step={passes}"
        )
    optimizer.gradient_accumulation_steps = passes
