"""The ops that note the first batch of a `fit`."""

from __future__ import annotations

import tensorflow as tf

from ring_keras import _libraries, _native


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
