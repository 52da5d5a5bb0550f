"""Waiting for all ranks, and what a process knows about the job as tensors."""

import tensorflow as tf

import ring_keras as ring
from ring_keras.job.process_set import ProcessSet, find_process_set, global_process_set

__all__ = [
    "barrier",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

_NO_JOB = -1
_NO_SUCH_SET = -3


def barrier(process_set: ProcessSet = global_process_set) -> tf.Operation | None:
    """See `ring_keras.barrier`."""
    return ring.barrier(process_set=process_set)


def join() -> int | tf.Tensor:
    """See `ring_keras.join`; in a graph, the tensor that joins when it is run."""
    if tf.executing_eagerly():
        return ring.join()
    last = tf.numpy_function(ring.join, [], tf.int64, stateful=True)
    return tf.ensure_shape(tf.cast(last, tf.int32), [])


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """The size of a process set, as of now, as a tensor."""
    return tf.constant(find_process_set(process_set_id).size(), tf.int32, name=name)


def process_set_included_op(
    process_set_id: int = 0, name: str | None = None
) -> tf.Tensor:
    """1 if this process is in a process set, else 0, as a tensor.

    As in Horovod, -1 before `init()`, and -3 for a process set that is not there.
    """
    included = _NO_JOB
    if ring.is_initialized():
        try:
            included = int(find_process_set(process_set_id).included())
        except ValueError:
            included = _NO_SUCH_SET
    return tf.constant(included, tf.int32, name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, as a tensor."""
    return tf.constant(ring.rank(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's local rank, as a tensor."""
    return tf.constant(ring.local_rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host, as a tensor."""
    return tf.constant(ring.local_size(), tf.int32, name=name)
