"""In which order a traced step computes its gradients."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ring_keras import _native
from ring_keras.job.process_set import ProcessSet
from ring_keras.optimizers.gradient_values import Gradient

__all__ = ["backward_order", "first_rank_order"]


def backward_order(gradients: Sequence[Gradient]) -> list[int]:
    """The positions of the gradients, in the order in which they are ready.

    A gradient is ready after as many ops as lie on the longest way to it. That is known
    when the step is traced, and holds whatever has been done to gradients since, as the
    scaling of losses. Among equals, and where nothing is traced, it is the reverse of
    the variables' order, in which backpropagation mostly makes them.
    """
    lengths: dict[str, int] = {}
    ready_after = [
        max((_longest_way(op, lengths) for op in _ops_of(gradient)), default=0)
        for gradient in gradients
    ]
    return sorted(range(len(gradients)), key=lambda i: (ready_after[i], -i))


def first_rank_order(order: Sequence[int], process_set: ProcessSet) -> list[int]:
    """That of the first rank; collective. Others may have traced something else too."""
    of_first = _native.broadcast(
        np.array(order, np.int64),
        0,
        "gradients/plan/order",
        process_set.communicator_id(),
    )
    positions: list[int] = of_first.tolist()
    return positions


def _ops_of(gradient: Gradient) -> list[tf.Operation]:
    """What makes it: a sparse one of its parts, which may be made dense."""
    parts = (
        [gradient.values, gradient.indices]
        if isinstance(gradient, tf.IndexedSlices)
        else [gradient]
    )
    return [
        part.op for part in parts if part is not None and tf.is_symbolic_tensor(part)
    ]


def _longest_way(op: tf.Operation, lengths: dict[str, int]) -> int:
    """How many ops come before it, one after the other.

    Args:
        op: Of a graph.
        lengths: The same of ops by their names; gets those that were not there.
    """
    pending, expanded = [op], set[str]()
    while pending:
        latest = pending[-1]
        before = [tensor.op for tensor in latest.inputs]
        missing = [one for one in before if one.name not in lengths]
        # Loops of TensorFlow 1 lead back.
        if missing and latest.name not in expanded:
            expanded.add(latest.name)
            pending += missing
        else:
            pending.pop()
            known = [lengths.get(one.name, 0) for one in before]
            lengths.setdefault(latest.name, 1 + max(known, default=0))
    return lengths[op.name]
