"""Ranks whose gradients differ all learn so, whatever each was about to do."""

from __future__ import annotations

import pytest
import tensorflow as tf

import ring_keras as ring

VARIABLES = 3


def run_once(pool, worker, *args):
    """Runs it on ranks that are not used again: some have begun what others have
    not."""
    try:
        return pool.run(worker, args=args, timeout_s=40)
    finally:
        pool.kill()


def step(variables, used):
    """One step of a loop of one's own, whose loss depends on some variables."""
    tape = ring.DistributedGradientTape(tf.GradientTape(), bucket_size_bytes=8)
    with tape:
        loss = tf.add_n([tf.reduce_sum(variables[index] ** 2) for index in used])
    return tape.gradient(loss, variables)


def eager_worker(rank_1_uses):
    """Rank 1 takes another branch in the third step."""
    variables = [tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES)]
    everything = range(VARIABLES)
    for _ in range(2):
        step(variables, everything)
    with pytest.raises(ring.RankMismatchError) as caught:
        step(variables, rank_1_uses if ring.rank() == 1 else everything)
    return str(caught.value)


@pytest.mark.parametrize("rank_1_uses", [[0, 1], [1, 2], [1]])
@pytest.mark.parametrize("size", [2, 3])
def test_a_missing_gradient_is_named_on_every_rank(rank_pool, rank_1_uses, size):
    messages = run_once(rank_pool(size), eager_worker, rank_1_uses)

    missing = min({0, 1, 2} - set(rank_1_uses))
    assert len(set(messages)) == 1
    assert f"gradient {missing} differs" in messages[0]
    assert f"rank 1 has 'v{missing}" in messages[0]
    assert "no gradient" in messages[0]


def traced_worker():
    """Rank 1 traces another step, while rank 0 replays the one it has."""
    variables = [tf.Variable([1.0, 2.0], name=f"v{n}") for n in range(VARIABLES)]

    @tf.function
    def traced(fewer):
        return step(variables, range(VARIABLES - int(fewer)))

    for _ in range(3):
        traced(False)
    # On rank 1 the error of autograph, which has that of ring_keras in its text.
    with pytest.raises(Exception, match="RankMismatchError") as caught:
        traced(ring.rank() == 1)
    return str(caught.value)


def test_a_step_that_one_rank_traces_is_an_error_on_all(rank_pool):
    for message in run_once(rank_pool(2), traced_worker):
        assert "gradients/bucket0" in message and "differs across ranks" in message
