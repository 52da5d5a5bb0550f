"""Broadcast: every rank gets one rank's tensors."""

from collections.abc import Sequence

import tensorflow as tf

from ring_keras import _libraries
from ring_keras.errors import translated
from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.arguments import TensorLike, to_root, to_tensor
from ring_keras.ops.branch_order import in_branch_order
from ring_keras.ops.request_names import to_request_name
from ring_keras.values.arguments import to_communicator

__all__ = ["broadcast", "grouped_broadcast"]


@translated()
def broadcast(
    tensor: TensorLike,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> tf.Tensor:
    """Copies the root's tensor to every rank.

    Differentiable: the root gets the sum of all ranks' gradients, the others
    get zeros.

    Examples:
        >>> seed = tf.constant(7 if ring.rank() == 0 else -1)
        >>> ring.broadcast(seed).numpy()
        np.int32(7)

    Args:
        tensor: Shape and dtype must agree on every rank. Only the root's values
            are used.
        root_rank: The rank of the whole job that sends.
        name: See `allreduce`. Defaults to "broadcast".
        process_set: Ranks taking part. Defaults to all.

    Returns:
        The root's tensor.

    Raises:
        NotInitializedError: If `ring_keras.init()` has not run.
        ValueError: If `root_rank` is no member of `process_set`.
        RankMismatchError: If ranks disagree on shape, dtype or root.
        PeerLostError: If a rank died or left.
        CollectiveTimeoutError: If a rank stays silent too long.
    """
    return _broadcast([tensor], root_rank, name, "broadcast", process_set)[0]


@translated()
def grouped_broadcast(
    tensors: Sequence[TensorLike],
    root_rank: int | Sequence[int] = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[tf.Tensor]:
    """Copies tensors of one dtype to every rank, as one message.

    Args:
        tensors: One or more tensors of the same dtype. Their number, shapes and
            order must agree on every rank.
        root_rank: See `broadcast`. Or one for each tensor: all of these ranks send at
            once.
        name: Defaults to "grouped_broadcast".
        process_set: See `broadcast`.

    Returns:
        Of each tensor its root's.
    """
    return _broadcast(tensors, root_rank, name, "grouped_broadcast", process_set)


def _broadcast(
    tensors: Sequence[TensorLike],
    root_rank: int | Sequence[int],
    name: str | None,
    function: str,
    process_set: ProcessSet | None,
) -> list[tf.Tensor]:
    tensors = [to_tensor(tensor, "broadcast") for tensor in tensors]
    ranks = root_rank
    if not isinstance(ranks, Sequence):
        ranks = [ranks] * len(tensors)
    elif len(ranks) != len(tensors):
        raise ValueError(
            "`root_rank` of grouped_broadcast must be one rank, or one for each "
            f"tensor. Received: {len(ranks)} ranks, {len(tensors)} tensors"
        )
    with in_branch_order():
        copies: list[tf.Tensor] = _libraries.ops().ring_keras_broadcast(
            tensors=tensors,
            roots=[to_root(one, process_set) for one in ranks],
            request_name=to_request_name(name, function, tensors),
            communicator_id=to_communicator(process_set),
        )
    return copies
