"""Makes a Keras optimizer average its gradients over the ranks."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.callbacks.distributed import prepare_fits
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.compression import Compression, Compressor
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.optimizers.hooking import install_hook
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.reduction_options import ReductionOptions

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802  Named like the class it was in Horovod.
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    process_set: ProcessSet | None = None,
    bucket_size_bytes: int | None = None,
    compression: Compression | Compressor | str = Compression.none,
    gradient_predivide_factor: float = 1.0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    sparse_as_dense: bool | None = None,
    num_groups: int = 0,
    groups: Sequence[Sequence[Any]] | None = None,
    local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer apply the average of all ranks' gradients.

    The optimizer stays what it is: the same object, of the same class, which
    saves, loads and prints as before. Gradients are reduced once per weight
    update, after gradient accumulation and before clipping, so clipping and
    the update see what one process with the global batch would see.

    `fit` gets the rest by itself, as a `ring_keras.callbacks.Distributed` without
    arguments: all ranks begin alike, metrics are of all ranks' data, an uneven last
    batch is weighted by its size, a step that reduces nothing raises, and XLA is
    turned off where collectives have no kernels for it (TensorFlow before 2.20).

    That makes training exactly that of one process with the global batch where
    each loss is the mean over its examples (Keras's default, `"mean"`, with sample
    weights too) or, of those given to `compile`, their sum, and where a single one
    with a single array of sample weights has `reduction="mean_with_sample_weight"`.
    It is close to it, not exact, where Keras divides by a number that only the
    forward pass knows: the entries that a mask leaves of a rank's batch (the output
    of a model of sequences with `mask_zero=True` or `Masking`). All ranks still
    apply the same update.

    A copy of the optimizer (`keras.models.load_model`, `copy.deepcopy`) is an
    ordinary one again: pass it here, or give `fit` a
    `ring_keras.callbacks.Distributed`.

    Examples:
        >>> optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1))
        >>> model.compile(optimizer, loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(*mine, batch_size=8, epochs=2, verbose=0)

    Args:
        optimizer: A Keras optimizer, or the name of one. Doing this again to
            the same one, with the same arguments, changes nothing.
        op: `AVERAGE`, which is right in `fit` for losses that add up their batch
            too; `SUM`, for a loop of your own whose loss is a sum; or `ADASUM`,
            which combines each variable's gradients by themselves, needs no larger
            learning rate with more ranks, and does not overlap with the backward
            pass.
        process_set: Ranks that train together. Defaults to all.
        bucket_size_bytes: Gradients travel in buckets of about this size.
            Defaults to `RING_KERAS_BUCKET_SIZE_BYTES`.
        compression: How float32 gradients travel between hosts; the same on
            every rank. With `ADASUM`, within a host too. Or a class or object
            of your own with `compress(tensor)`, which returns what is reduced
            in place of a dense gradient, and a context, and
            `decompress(reduced, context)`.
        gradient_predivide_factor: An average divides by this before the sum,
            and by the number of ranks over this after it, so that neither sum
            nor parts leave the range of a 16-bit type. Sums are made in float32
            or wider in any case.
        backward_passes_per_step: Gradients of so many batches are accumulated
            on each rank before one reduction and one update. It becomes the
            optimizer's `gradient_accumulation_steps`, but adds the gradients
            up, which Keras averages; a file saved from it keeps that number
            alone.
        average_aggregated_gradients: Whether to average them as Keras does.
        sparse_as_dense: Whether `tf.IndexedSlices` are made dense before they
            travel, rather than gathered. By default that is done where it costs
            less and the update is the same: with SGD that does not clip, where
            the number of slices is known when the step is traced. Other
            optimizers of Keras square or clip slice by slice, so that an index
            that is there twice gets another update from a dense gradient.
        num_groups: Gradients travel in this many buckets, of about equally many
            variables, in place of buckets of one size; 0 for the latter.
        groups: Lists of variables: the gradients of each list travel in a
            bucket of their own, others as usual.
        local_layers: Layers whose weights each rank trains by itself: their
            gradients are not reduced.
        scale_local_gradients: Whether those are divided by the number of
            ranks, or rather weighted like the rank's share of an average: then
            they are the gradients of the mean of all ranks' losses.

    Returns:
        `optimizer`.

    Raises:
        ValueError: If an argument is not what it must be, or two contradict each
            other, what the optimizer does, or what it was given here before.
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
    )
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
    for plain in plain_optimizers:
        if options.keeps_local and plain.global_clipnorm:
            raise ValueError(
                "[RK420] "
                "`global_clipnorm` compares the norm of all gradients, which "
                "`local_layers` make a different one on every rank, so that the "
                "ranks' common weights would drift apart. Clip by `clipnorm` or "
                f"`clipvalue`. Received: global_clipnorm={plain.global_clipnorm}"
            )
        if backward_passes_per_step > 1:
            _accumulate(plain, backward_passes_per_step)
    install_hook(optimizer, options)
    prepare_fits()
    return optimizer


def _refuse_other_options(
    optimizer: keras.optimizers.Optimizer, options: ReductionOptions
) -> None:
    """Where the optimizer, or one in it, reduces already, and in another way."""
    hook = OptimizerHook.of(optimizer)
    if hook is not None and hook.options != options:
        differences = [
            f"{field.name}={getattr(options, field.name)!r}, and before "
            f"{field.name}={getattr(hook.options, field.name)!r}"
            for field in dataclasses.fields(options)
            if getattr(options, field.name) != getattr(hook.options, field.name)
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
