"""Join: ranks that have run out of data let the others go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from support import RankPool, run_ranks

import ring_keras as ring
import ring_keras.horovod.tensorflow as hvd
from ring_keras import _native

BATCH = 8


def steps_of(rank: int, size: int, shift: int) -> int:
    """One rank has no batch at all, and another one the most."""
    return 3 * ((rank + shift) % size)


def batch_of(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([rank, step])
    return (
        rng.normal(size=(BATCH, 5)).astype(np.float32),
        rng.normal(size=(BATCH, 1)).astype(np.float32),
    )


def new_variables() -> list[tf.Variable]:
    rng = np.random.default_rng(1)
    return [
        tf.Variable(rng.normal(size=shape).astype(np.float32))
        for shape in ([5, 7], [7], [7, 1])
    ]


def loss_of(variables: list[tf.Variable], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    hidden = tf.tanh(x @ variables[0] + variables[1])
    return tf.reduce_mean(tf.square(hidden @ variables[2] - y))


def trained_by_one_process(size: int, shift: int) -> Iterator[np.ndarray]:
    """In each step on the batches of all ranks that still have one."""
    variables = new_variables()
    steps = [steps_of(rank, size, shift) for rank in range(size)]
    for step in range(max(steps)):
        batches = [batch_of(rank, step) for rank in range(size) if step < steps[rank]]
        x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
        with tf.GradientTape() as tape:
            loss = loss_of(variables, x, y)
        for variable, gradient in zip(
            variables, tape.gradient(loss, variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
    return (variable.numpy() for variable in variables)


def check_training(shift: int, graph: bool) -> None:
    size, rank = ring.size(), ring.rank()
    variables = new_variables()

    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(variables, x, y)
        for variable, gradient in zip(
            variables, tape.gradient(loss, variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)

    run = tf.function(step) if graph else step
    for number in range(steps_of(rank, size, shift)):
        run(*map(tf.constant, batch_of(rank, number)))
    last = ring.join()

    assert last == max(range(size), key=lambda other: steps_of(other, size, shift))
    ring.broadcast_variables(variables, root_rank=last)
    for variable, expected in zip(
        variables, trained_by_one_process(size, shift), strict=True
    ):
        np.testing.assert_allclose(variable, expected, rtol=1e-4, atol=1e-5)
        everywhere = ring.allgather(tf.expand_dims(variable, 0)).numpy()
        assert (everywhere == everywhere[0]).all()


@pytest.mark.parametrize("graph", [False, True])
def test_uneven_training_is_that_of_one_process(ranks: RankPool, graph: bool) -> None:
    for shift in range(ranks.size):
        ranks.run(check_training, args=[shift, graph])


def check_collectives() -> None:
    size, rank = ring.size(), ring.rank()
    for epoch in range(3):
        steps = [1 + (other + epoch) % size for other in range(size)]
        for step in range(steps[rank]):
            active = [other for other in range(size) if step < steps[other]]
            total = ring.allreduce(tf.fill([100], rank + 1.0), "sum", name="join/sum")
            np.testing.assert_array_equal(total, sum(other + 1 for other in active))
            mean = ring.allreduce(tf.fill([3], float(rank)), name="join/mean")
            np.testing.assert_allclose(mean, np.mean(active), rtol=1e-6)
            rows = ring.allgather(tf.fill([rank + 1], rank))
            np.testing.assert_array_equal(rows, np.repeat(active, np.add(active, 1)))
            assert ring.broadcast(rank, active[-1]) == active[-1]
            ring.barrier()
        last = ring.join() if epoch else hvd.join()
        assert steps[last] == max(steps)
        # What joining left behind does not show.
        total = ring.allreduce(tf.ones([100]), "sum", name="join/sum")
        np.testing.assert_array_equal(total, size)


def test_collectives_go_on(ranks: RankPool) -> None:
    ranks.run(check_collectives)


def check_process_set() -> None:
    size, rank = ring.size(), ring.rank()
    upper = ring.add_process_set(range(1, size))
    if upper.included():
        for step in range(rank):
            total = ring.allreduce(1.0, "sum", process_set=upper)
            assert total == size - 1 - step
        assert ring.join(process_set=upper) == size - 1
    else:
        with pytest.raises(ValueError, match="is not in process set"):
            ring.join(process_set=upper)
    assert ring.allreduce(1.0, "sum") == size
    assert ring.remove_process_set(upper)


def test_a_process_set_joins_by_itself(peers: RankPool) -> None:
    peers.run(check_process_set)


def check_refusals() -> None:
    if ring.rank() > 0:
        refused = pytest.raises(ring.RankMismatchError, match=r"rank 0 .* join\(\)")
        with refused:
            ring.allreduce(1.0, "min", name="join/least")
        with refused:
            ring.broadcast(1.0, 0, name="join/root")
        with refused:
            ring.add_process_set([0])
        assert ring.allreduce(1.0, "sum") == ring.size() - 1
    assert ring.join() > 0
    assert ring.allreduce(1.0 + ring.rank(), "min", name="join/least") == 1.0
    assert ring.broadcast(ring.rank(), 0, name="join/root") == 0


def test_what_needs_every_rank_is_refused(peers: RankPool) -> None:
    peers.run(check_refusals)


def check_slices() -> None:
    """Rank 0 has joined."""
    others = ring.size() - 1
    if ring.rank() > 0:
        rows = tf.IndexedSlices(tf.fill([ring.rank(), 2], 6.0), [1] * ring.rank())
        for average in (ring.allreduce(rows), hvd.allreduce(rows, op=hvd.Average)):
            assert average.indices.numpy().tolist() == [1] * (
                others * (others + 1) // 2
            )
            np.testing.assert_allclose(average.values, 6.0 / others)
        table = tf.Variable(tf.ones([3, 2]))
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]))
        gradient = tf.convert_to_tensor(tape.gradient(loss, table))
        np.testing.assert_allclose(gradient, [[0, 0], [1, 1], [0, 0]], rtol=1e-6)
    ring.join()


def test_averages_of_slices_leave_out_who_has_joined(peers: RankPool) -> None:
    peers.run(check_slices)


def check_gradients() -> None:
    """Rank 0 has joined."""
    size = ring.size()
    others = size - 1
    if ring.rank() > 0:
        x = tf.fill([ring.rank(), 2], 1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(ring.allgather(3 * x))
        np.testing.assert_allclose(tape.gradient(loss, x), np.full(x.shape, 3 * others))
        whole = tf.ones([size, 2])
        for function in (ring.reducescatter, ring.alltoall):
            with tf.GradientTape() as tape:
                tape.watch(whole)
                loss = tf.reduce_sum(function(whole))
            with pytest.raises(ring.RingKerasError, match=r"RK417.*is in join\(\)"):
                tape.gradient(loss, whole)
    ring.join()


def test_gradients_are_whole_or_refused(peers: RankPool) -> None:
    peers.run(check_gradients)


def check_different_plans() -> None:
    rank = ring.rank()
    if rank > 0:
        variable = tf.Variable(tf.zeros([rank]))
        with ring.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable)
        with pytest.raises(ring.RankMismatchError, match=r"rank 1 has .*rank 2 has"):
            tape.gradient(loss, [variable])
    ring.join()


def test_ranks_that_disagree_are_named_without_who_has_joined(
    peers: RankPool,
) -> None:
    if peers.size > 2:
        peers.run(check_different_plans)


def killed_while_others_have_joined(victim: int) -> None:
    ring.init()
    _native.allreduce(np.ones(10, np.float32), "sum", "step")
    if ring.rank() != victim:
        ring.join()
        return
    # In the middle of what the others stand in for.
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        _native.allreduce(np.ones(100_000, np.float32), "sum", "step")


@pytest.mark.parametrize(
    ("size", "victim", "transport"),
    [
        (2, 1, "auto"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(2, 1, "tcp"), (4, 0, "auto"), (4, 0, "tcp")]
        ),
    ],
)
def test_a_killed_rank_is_named_in_join(transport: str, size: int, victim: int) -> None:
    env = {"RING_KERAS_TRANSPORT": transport}
    outcomes = run_ranks(
        killed_while_others_have_joined, size, env=env, args=(victim,), check=False
    )
    assert outcomes[victim].signal == signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != victim:
            assert outcome.exception_type == "PeerLostError", outcome.describe()
            assert f"rank {victim} (host " in outcome.message, outcome.describe()
