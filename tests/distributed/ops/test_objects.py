"""Plain Python values between ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool

import ring_keras as ring


def value_of(rank: int) -> dict[str, object]:
    return {
        "rank": rank,
        "nested": [(None, True, 1.5, 1j, "text", b"bytes"), {rank, "set"}],
        "large": 10**40 * rank,
        "long": "x" * 50_000 * rank,
    }


def check_objects() -> None:
    size, rank = ring.size(), ring.rank()
    assert ring.allgather_object(value_of(rank)) == [
        value_of(other) for other in range(size)
    ]
    for root in range(size):
        mine = value_of(rank) if rank == root else object()
        assert ring.broadcast_object(mine, root) == value_of(root)
    array = ring.broadcast_object(np.arange(6.0).reshape(2, 3) + rank)
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])


def test_values_arrive_as_they_were(ranks: RankPool) -> None:
    ranks.run(check_objects)


def check_text() -> None:
    """NumPy's arrays of bytes end where only zeros follow."""
    mine = ring.rank() == 0
    written = tf.io.serialize_tensor(tf.zeros([2]))
    read = ring.broadcast_object(written if mine else None)
    np.testing.assert_array_equal(tf.io.parse_tensor(read, tf.float32), [0.0, 0.0])
    for value in (tf.constant(b"a\0"), np.bytes_(b"a\0")):
        got = ring.broadcast_object(value if mine else None)
        assert mine or bytes(got) == b"a\0"
        everybodys = ring.allgather_object(value)
        assert [bytes(one) for one in everybodys] == [b"a\0"] * ring.size()


def test_text_keeps_zeros_at_its_end(ranks: RankPool) -> None:
    ranks.run(check_text)


def check_masked() -> None:
    with pytest.raises(TypeError, match="a masked array"):
        ring.allgather_object(np.ma.array([1, 2], mask=[False, True]))


def test_a_mask_is_not_lost(ranks: RankPool) -> None:
    ranks.run(check_masked)


def check_refused() -> None:
    size, rank = ring.size(), ring.rank()
    bad = size - 1
    value = [1, object()] if rank == bad else [1, 2]
    for call in (
        lambda: ring.allgather_object(value),
        lambda: ring.broadcast_object(value, bad),
    ):
        if rank == bad:
            with pytest.raises(TypeError, match=r"value\[1\] is builtins.object"):
                call()
        else:
            with pytest.raises(ring.RingKerasError, match=f"rank {bad} could not"):
                call()
    assert ring.allgather_object(rank) == list(range(size))


def test_what_cannot_be_sent_fails_on_every_rank(ranks: RankPool) -> None:
    ranks.run(check_refused)


def check_beside_join() -> None:
    if ring.rank() == 0:
        ring.join()
        return
    with pytest.raises(ValueError, match=r"\[RK407\] .*agreed: rank 0 is in join"):
        ring.agree_on("value", name="agreed")
    assert ring.allgather_object("value") == ["value"] * (ring.size() - 1)
    ring.join()


def test_what_a_joined_rank_would_have_to_say(ranks: RankPool) -> None:
    ranks.run(check_beside_join)
