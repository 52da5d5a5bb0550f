"""The buckets in which a model's gradients travel, for TensorBoard."""

from collections.abc import Iterable
from typing import Any

import keras

from ring_keras.optimizers.buckets import bucket_name
from ring_keras.optimizers.optimizer_hook import OptimizerHook

__all__ = ["bucket_figures"]


def bucket_figures(
    optimizers: Iterable[keras.optimizers.Optimizer],
) -> list[dict[str, Any]]:
    """Name, bytes, and fill from 0 to 1, in the order in which the buckets start.

    Args:
        optimizers: Of one model. The names tell whose a bucket is, if several have any.

    Returns:
        As the ranks have agreed; empty before the first step, and where gradients are
        reduced by a tape.
    """
    hooks = map(OptimizerHook.of, optimizers)
    plans = [hook.latest_plan for hook in hooks if hook and hook.latest_plan]
    return [
        {
            "name": f"{bucket_name(number)}{_of(which, len(plans))}",
            "bytes": bucket.nbytes,
            "fill": bucket.fill,
        }
        for which, plan in enumerate(plans)
        for number, bucket in enumerate(plan.buckets)
    ]


def _of(which: int, count: int) -> str:
    return f" of optimizer {which}" if count > 1 else ""
