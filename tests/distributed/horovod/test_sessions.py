"""Graphs of TensorFlow 1, run by `tf.compat.v1.Session`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import ring_keras as ring
import ring_keras.horovod.tensorflow as hvd

v1 = tf.compat.v1


def check_training() -> None:
    """Ranks with equal parts of each batch train as one process with all of it."""
    size, rank = hvd.size(), hvd.rank()
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(12, 3)).astype("float32")
    words = rng.integers(0, 5, size=(12,))
    targets = (inputs.sum(1, keepdims=True) + words[:, None]).astype("float32")

    def train(make_optimizer, part: slice, hooks) -> list[np.ndarray]:
        v1.set_random_seed(rank)
        x = v1.placeholder(tf.float32, [None, 3])
        word = v1.placeholder(tf.int64, [None])
        y = v1.placeholder(tf.float32, [None, 1])
        kernel = v1.get_variable("kernel", [3, 4])
        # Of TensorFlow 1's own kind, with a gradient of slices.
        table = v1.get_variable("table", [5, 4], use_resource=False)
        out = v1.get_variable("out", [4, 1], use_resource=True)
        hidden = tf.tanh(x @ kernel) + tf.nn.embedding_lookup(table, word)
        loss = tf.reduce_mean((hidden @ out - y) ** 2)
        step = v1.train.get_or_create_global_step()
        optimizer = make_optimizer(v1.train.GradientDescentOptimizer(0.05))
        update = optimizer.minimize(loss, global_step=step)
        operations = v1.get_default_graph().get_operations()
        waits = [op for op in operations if op.type == "RingKerasAllreduceWait"]
        # Another rank's may come in another order, and need the thread for starts.
        assert not any(op.get_attr("blocks") for op in waits)
        assert bool(waits) == (bool(hooks) and size > 1)
        variables = [kernel, table, out]
        set_values = [
            v.assign(np.linspace(-1, 1, v.shape.num_elements()).reshape(v.shape))
            for v in variables
        ]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            if not hooks or rank == 0:
                session.run(set_values)
            if hooks:  # As it does when the session begins.
                hooks[0].after_create_session(session, None)
            feed = {x: inputs[part], word: words[part], y: targets[part]}
            for _ in range(3):
                session.run(update, feed)
            assert session.run(step) == 3
            return session.run(variables)

    with tf.Graph().as_default():
        alone = train(lambda optimizer: optimizer, slice(None), [])
    with tf.Graph().as_default():
        if rank == 1:
            tf.constant(0.0, name="only_here")
        hook = hvd.BroadcastGlobalVariablesHook(0)
        together = train(hvd.DistributedOptimizer, slice(rank, None, size), [hook])
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def check_order_does_not_matter() -> None:
    """What is ready first on one rank is ready last on another."""
    size, rank = hvd.size(), hvd.rank()
    count = 6
    with tf.Graph().as_default(), v1.Session() as session:
        sources = [v1.placeholder_with_default(n * 10.0, []) for n in range(count)]
        ready: dict[int, tf.Tensor] = {}
        previous: list[tf.Tensor] = []
        order = range(count) if rank == 0 else reversed(range(count))
        identities = {}
        for n in order:
            with tf.control_dependencies(previous):
                identities[n] = tf.numpy_function(
                    lambda value: value, [sources[n]], tf.float32, name=f"source{n}"
                )
            previous = [identities[n]]
        for n in range(count):
            ready[n] = tf.ensure_shape(identities[n], [])
        sums = [hvd.allreduce(ready[n] + rank, op=hvd.Sum) for n in range(count)]
        twice = [hvd.allreduce(ready[n], op=hvd.Max, name="same") for n in range(count)]
        gradients = [
            tf.gradients(hvd.allgather(ready[n][None] * (n + 1.0)), ready[n])[0]
            for n in range(count)
        ]
        for _ in range(3):
            got = session.run([sums, twice, gradients])
            total = size * (size - 1) / 2
            assert got[0] == [size * n * 10.0 + total for n in range(count)]
            assert got[1] == [n * 10.0 for n in range(count)]
            assert got[2] == [n + 1.0 for n in range(count)]


def check_other_collectives() -> None:
    size, rank = hvd.size(), hvd.rank()
    with tf.Graph().as_default(), v1.Session() as session:
        mine = tf.constant([float(rank)])
        variable = v1.get_variable("v", initializer=[float(rank)], use_resource=False)
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(size - 1))
        assert session.run(variable).tolist() == [size - 1.0]
        session.run(variable.assign(mine))
        (value,) = hvd.broadcast_([variable], 0)
        assert session.run(value).tolist() == [0.0]
        branch = tf.cond(
            tf.constant(True), lambda: hvd.allreduce(mine, op=hvd.Sum), lambda: mine
        )
        fetched = session.run(
            {
                "gather": hvd.allgather(mine),
                "broadcast": hvd.broadcast(mine, size - 1),
                "grouped": hvd.grouped_allreduce([mine, tf.constant([rank])]),
                "scatter": hvd.reducescatter(tf.ones([size])),
                "alltoall": hvd.alltoall(tf.fill([size], rank)),
                "branch": branch,
                "size": hvd.size_op(),
                "barrier": hvd.barrier(),
            }
        )
        assert fetched["gather"].tolist() == list(range(size))
        assert fetched["broadcast"].tolist() == [size - 1.0]
        assert fetched["grouped"][0].tolist() == [(size - 1) / 2]
        assert fetched["grouped"][1].tolist() == [(size - 1) // 2]
        assert fetched["scatter"].tolist() == [1.0]
        assert fetched["alltoall"].tolist() == list(range(size))
        assert fetched["branch"].tolist() == [size * (size - 1) / 2]
        assert fetched["size"] == size
        assert hvd.broadcast_object([rank], session=session) == [0]
        assert hvd.allgather_object(rank, session=session) == list(range(size))
        assert session.run(hvd.join()) in range(size)
        # A function keeps the order of its own, whatever calls it.
        both = tf.function(lambda x: hvd.allreduce(x) + hvd.allreduce(x, op=hvd.Sum))
        assert session.run(both(mine)).tolist() == [(size - 1) * (size + 1) / 2]
        loop = tf.while_loop(
            lambda n, _: n < 3,
            lambda n, x: (n + 1, hvd.allreduce(x, op=hvd.Sum)),
            [0, tf.constant(1.0)],
        )
        assert session.run(loop[1]) == size**3
        if size > 1:
            with pytest.raises(
                tf.errors.FailedPreconditionError, match="shape differs"
            ):
                session.run(hvd.allreduce(tf.ones([rank + 1])))
        assert session.run(hvd.allreduce(1.0)) == 1.0


def check_gradients() -> None:
    """Each fetched alone: what a rank throws away it must reduce all the same."""
    size, rank = hvd.size(), hvd.rank()
    with tf.Graph().as_default(), v1.Session() as session:
        mine = tf.fill([size], float(rank))
        results = {
            "allreduce": ring.allreduce(mine, op=ring.Sum),
            "broadcast": ring.broadcast(mine, size - 1),
            "grouped": ring.grouped_allreduce([mine], op=ring.Sum)[0],
            "gather": ring.allgather(mine)[:size],
            "scatter": ring.reducescatter(mine, op=ring.Sum)[0],
            "alltoall": ring.alltoall(mine),
        }
        for name, result in results.items():
            gradient = tf.gradients(tf.reduce_sum(result * (rank + 1.0)), mine)[0]
            results[name] = session.run(gradient).tolist()
        total = size * (size + 1) / 2
        is_first, is_last = float(rank == 0), float(rank == size - 1)
        assert results["allreduce"] == [total] * size
        assert results["broadcast"] == [is_last * total] * size
        assert results["grouped"] == [total] * size
        assert results["gather"] == [is_first * total] * size
        assert results["scatter"] == [n + 1.0 for n in range(size)]
        assert results["alltoall"] == [n + 1.0 for n in range(size)]


def check_optimizer() -> None:
    size, rank = hvd.size(), hvd.rank()
    sgd = v1.train.GradientDescentOptimizer(1.0)
    with pytest.raises(NotImplementedError, match="backward_passes_per_step=2"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=2)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum)
    optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.1), name="mine")
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.get_name() == "mine"
    with tf.Graph().as_default(), v1.Session() as session:
        shared = v1.get_variable("shared", initializer=[0.0])
        own = v1.get_variable("own", initializer=[0.0])
        optimizer.register_local_var(own)
        loss = (rank + 1.0) * tf.reduce_sum(shared + own)
        pairs = optimizer.compute_gradients(loss, [shared, own])
        assert [variable for _, variable in pairs] == [shared, own]
        got = session.run([gradient for gradient, _ in pairs])
        assert got[0].tolist() == [(size + 1) / 2]
        np.testing.assert_allclose(got[1], [(rank + 1) / size])
        optimizer.apply_gradients(pairs)
        assert optimizer.get_slot_names() == ["m", "v"]
        assert optimizer.get_slot(shared, "m") is not None
        assert optimizer.variables()


@pytest.mark.parametrize(
    "check",
    [
        check_training,
        check_order_does_not_matter,
        check_other_collectives,
        check_gradients,
        check_optimizer,
    ],
)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.slow),
        2,
        pytest.param(3, marks=pytest.mark.slow),
    ],
)
def test_sessions(rank_pool, size, check):
    rank_pool(size).run(check)
