"""The ops that note the first batch of a `fit`."""

from __future__ import annotations

import tensorflow as tf

from ring_keras import _libraries, _native
from ring_keras.training.timed_iterator import TimedIterator


def worker() -> list[tuple[bool, int]]:
    """Whether the first batch is awaited, and the digest, before and after two."""
    ops = _libraries.ops()

    @tf.function  # type: ignore[untyped-decorator]
    def awaits() -> tf.Tensor:
        return ops.ring_keras_awaits_first_batch()

    @tf.function  # type: ignore[untyped-decorator]
    def note(*batch: tf.Tensor) -> None:
        ops.ring_keras_note_first_batch(batch=batch)

    seen = []

    def look() -> None:
        seen.append((bool(awaits()), _native.first_batch()))

    note(tf.ones([5]))  # Nobody has asked for it.
    _native.await_first_batch()
    look()
    note(tf.ones([3]), tf.constant(["text"]))
    look()
    note(tf.zeros([3]))
    look()
    return seen


def test_the_first_batch_alone_is_noted(rank_pool) -> None:
    (seen,) = rank_pool(1).run(worker)
    before, first, second = seen

    assert before == (True, 0)
    assert first[0] is False
    assert first[1] != 0
    assert second == first


def batches_worker(on_host: bool) -> tuple[bool, list[int], int]:
    """Whether there is a branch; the batches; the digest, once there is one."""
    batches = iter(tf.data.Dataset.from_tensor_slices([3, 4, 5]))
    timed = TimedIterator([batches._iterator_resource], batches.element_spec, on_host)

    @tf.function
    def take(timed: TimedIterator) -> tf.Tensor:
        return next(timed)

    graph = take.get_concrete_function(timed).graph
    has_branch = any("If" in op.type for op in graph.get_operations())
    _native.await_first_batch()
    first = int(take(timed))
    digest = _native.first_batch()
    rest = [int(take(timed)), int(take(timed))]
    assert _native.first_batch() == digest
    return has_branch, [first, *rest], digest


def test_batches_of_a_device_are_looked_at_in_a_branch(rank_pool) -> None:
    """So that a GPU's are copied to the host once."""
    ((has_branch, batches, digest),) = rank_pool(1).run(batches_worker, args=(False,))
    ((without, same, also),) = rank_pool(1).run(batches_worker, args=(True,))

    assert has_branch and not without
    assert batches == same == [3, 4, 5]
    assert digest == also != 0
