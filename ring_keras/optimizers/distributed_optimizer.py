"""Makes a Keras optimizer average its gradients over the ranks."""

import keras

from ring_keras.communicator import ProcessSet, global_process_set
from ring_keras.compression import Compression
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.reduce_op import ReduceOp

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802  Named like the class it was in Horovod.
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: ReduceOp | str = ReduceOp.AVERAGE,
    process_set: ProcessSet | None = None,
    bucket_size_bytes: int | None = None,
    compression: Compression | str = Compression.none,
) -> keras.optimizers.Optimizer:
    """Makes an optimizer apply the average of all ranks' gradients.

    The optimizer stays what it is: the same object, of the same class, which
    saves, loads and prints as before. Gradients are reduced once per weight
    update, after gradient accumulation and before clipping, so clipping and
    the update see what one process with the global batch would see.

    Give `fit` a callback of `ring_keras.callbacks` too: with one, an uneven last
    batch is weighted by its size, a step that reduces nothing raises, and XLA,
    which has no kernel for collectives, is turned off.

    That makes training exactly that of one process with the global batch where
    a loss is the mean over its examples (Keras's default, `"mean"`, with sample
    weights too) or their sum, and where a single one with a single array of
    sample weights has `reduction="mean_with_sample_weight"`. It is close to it,
    not exact, where Keras divides by a number that only the forward pass knows:
    the entries that a mask leaves of a rank's batch (the output of a model of
    sequences with `mask_zero=True` or `Masking`). All ranks still apply the
    same update.

    A copy of the optimizer (`keras.models.load_model`, `copy.deepcopy`) is an
    ordinary one again: pass it here, or let
    `ring_keras.callbacks.BroadcastGlobalVariables` do that.

    Args:
        optimizer: A Keras optimizer, or the name of one. Doing this again to
            the same one changes nothing.
        op: `AVERAGE` or `SUM`.
        process_set: Ranks that train together. Defaults to all.
        bucket_size_bytes: Gradients travel in buckets of about this size.
            Defaults to `RING_KERAS_BUCKET_SIZE_BYTES`.
        compression: How float32 gradients travel between hosts; the same on
            every rank.

    Returns:
        `optimizer`.

    Raises:
        ValueError: If `op` is neither of the two, or `compression` unknown.
    """
    optimizer = keras.optimizers.get(optimizer)
    if OptimizerHook.of(optimizer) is None:
        OptimizerHook(
            optimizer,
            op,
            process_set or global_process_set,
            bucket_size_bytes,
            compression,
        ).install()
    return optimizer
