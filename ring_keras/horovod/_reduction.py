"""How Horovod reduces: integers too, and through a compressor's hands."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ring_keras.horovod._integers import average_of_sum, averages_integers, widened
from ring_keras.values.reduce_op import ReduceOp, Sum

__all__ = ["name_of_member", "reduce_tensors"]


def reduce_tensors(
    tensors: Sequence[Any],
    function: Callable[..., list[tf.Tensor]],
    *,
    name: str | None,
    op: ReduceOp,
    compressor: Any,
    prescale_factor: float,
    postscale_factor: float,
    size: int,
) -> list[tf.Tensor]:
    """Calls `function` for integers and for the rest, compressed by hand."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    contexts: list[Any] = []
    if compressor is not None:
        pairs = [compressor.compress(tensor) for tensor in tensors]
        tensors = [tensor for tensor, _ in pairs]
        contexts = [context for _, context in pairs]
    integers = [i for i, t in enumerate(tensors) if averages_integers(t, op)]
    others = [i for i in range(len(tensors)) if i not in integers]
    reduced = list(tensors)
    if integers:
        totals = function(
            [widened(tensors[index]) for index in integers],
            Sum,
            name=name_of_member(name, "integers") if others else name,
            prescale_factor=prescale_factor,
        )
        for index, total in zip(integers, totals, strict=True):
            reduced[index] = average_of_sum(
                total, size, postscale_factor, tensors[index].dtype
            )
    if others:
        results = function(
            [tensors[index] for index in others],
            op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for index, result in zip(others, results, strict=True):
            reduced[index] = result
    if compressor is not None:
        reduced = [
            compressor.decompress(tensor, context)
            for tensor, context in zip(reduced, contexts, strict=True)
        ]
    return reduced


def name_of_member(name: str | None, which: int | str) -> str | None:
    """Of one of several collectives under a name, if there is one."""
    return None if name is None else f"{name}/{which}"
