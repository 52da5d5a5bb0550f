"""Where Horovod's numbers and errors are not those of ring_keras: Horovod's."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
import ring_keras.horovod.keras as hvd_keras
import ring_keras.horovod.tensorflow as hvd

INTEGERS = ["uint8", "int8", "uint16", "int16", "int32", "int64"]


def check_averages_of_integers() -> None:
    """Rounded toward zero; sums do not wrap on the way."""
    size, rank = hvd.size(), hvd.rank()
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        mine = np.array([limits.max - rank, 2 * rank, max(limits.min, -3 - 4 * rank)])
        all_ranks = [
            [limits.max - r, 2 * r, max(limits.min, -3 - 4 * r)] for r in range(size)
        ]
        mean = [int(sum(column) / size) for column in zip(*all_ranks, strict=True)]
        if dtype == "int64":  # No type is wider.
            mine, mean = mine[1:], mean[1:]
        tensor = tf.constant(mine, dtype)
        for call in (hvd.allreduce, tf.function(hvd.allreduce)):
            result = call(tensor)
            assert result.dtype == dtype
            assert result.numpy().tolist() == mean, dtype
        number, real = hvd.grouped_allreduce([tensor, tf.constant([float(rank)])])
        assert number.numpy().tolist() == mean
        assert real.numpy().tolist() == [(size - 1) / 2]
        part = hvd.reducescatter(tf.fill([size], tensor[-1]))
        assert part.dtype == dtype
        assert part.numpy().tolist() == mean[-1:]
    tensor = tf.constant([7, -7]) * (rank + 1)
    half = hvd.allreduce(tensor, prescale_factor=0.5, postscale_factor=0.5)
    total = sum(int(7 * (r + 1) * 0.5) for r in range(size))
    assert half.numpy().tolist() == [int(total * 0.5 / size), -int(total * 0.5 / size)]


def gradient_of(function, value, *, graph: bool) -> np.ndarray:
    """Of the sum of what the function makes of `value`, weighed by rank + 1."""

    def gradient(variable):
        with tf.GradientTape() as tape:
            tape.watch(variable)
            loss = (hvd.rank() + 1.0) * tf.reduce_sum(function(variable))
        return tape.gradient(loss, variable)

    call = tf.function(gradient) if graph else gradient
    return call(tf.constant(value)).numpy()


def check_gradients() -> None:
    """Of the mean of the losses; a reduce-scatter's `size` times those of the sum."""
    size, rank = hvd.size(), hvd.rank()
    mean = (size + 1) / 2
    rows = np.ones([rank + 1, 2], "float32")
    parts = np.ones([size, 2], "float32")
    by_rank = np.repeat(np.arange(1.0, size + 1), 2).reshape(size, 2)
    cases = [
        (hvd.allreduce, rows[:1], mean),
        (lambda x: hvd.allreduce(x, op=hvd.Sum), rows[:1], size * mean),
        (hvd.allgather, rows, mean),
        (lambda x: tf.concat(hvd.grouped_allgather([x, x]), 0), rows, 2 * mean),
        (lambda x: hvd.broadcast(x, 0), rows[:1], mean if rank == 0 else 0),
        (lambda x: hvd.reducescatter(x, op=hvd.Sum), parts, size * by_rank),
        (hvd.reducescatter, parts, by_rank),
        (hvd.alltoall, parts, by_rank),
        # Its slices are gathered, so each rank gets the mean of theirs.
        (
            lambda x: hvd.allreduce(tf.IndexedSlices(x, [0] * (rank + 1))).values,
            rows,
            mean / size,
        ),
    ]
    for graph in (False, True):
        for number, (function, value, expected) in enumerate(cases):
            np.testing.assert_allclose(
                gradient_of(function, value, graph=graph),
                np.broadcast_to(expected, value.shape),
                rtol=1e-6,
                err_msg=f"case {number}, graph={graph}",
            )


class Halves(hvd.compression.Compressor):
    """Counts what it gets, and reduces half of it."""

    calls = 0

    @staticmethod
    def compress(tensor):
        Halves.calls += 1
        return tensor / 2, 2.0

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * ctx + 1.0  # So that its effect can be seen.


def check_compressors() -> None:
    size, rank = hvd.size(), hvd.rank()
    mean = (size + 1) / 2
    small, ctx = hvd.Compression.fp16.compress(tf.constant([1.0]))
    assert small.dtype == tf.float16
    assert hvd.Compression.fp16.decompress(small, ctx).dtype == tf.float32
    whole, ctx = hvd.Compression.fp16.compress(tf.constant([3]))
    assert hvd.Compression.fp16.decompress(whole, ctx).dtype == tf.int32
    same, ctx = hvd.Compression.none.compress(small)
    assert same is small
    assert hvd.Compression.none.decompress(same, ctx) is small
    assert issubclass(hvd.Compression.none, hvd.compression.Compressor)

    mine = tf.fill([size], rank + 1.0)
    for own in (Halves, Halves()):
        for result in (
            hvd.allreduce(mine, compression=own),
            hvd.grouped_allreduce([mine], compression=own)[0],
            hvd.reducescatter(mine, compression=own),
            hvd_keras.allreduce(mine, compression=own),
        ):
            assert set(result.numpy()) == {mean + 1.0}
    with pytest.raises(TypeError, match="compress"):
        hvd.allreduce(mine, compression=object())

    variable = keras.Variable(tf.zeros([2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * (rank + 1.0))
    tape = hvd.DistributedGradientTape(tape, compression=Halves)
    assert (
        tape.gradient(loss, [variable])[0].numpy().tolist() == [mean + (size > 1)] * 2
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Halves)
    calls = Halves.calls
    optimizer.apply([tf.fill([2], rank + 1.0)], [variable])
    assert Halves.calls == calls + (size > 1)
    assert variable.numpy().tolist() == [-mean - (size > 1)] * 2


def check_errors() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2])
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        with pytest.raises(NotImplementedError, match="Received: op="):
            hvd.allreduce(slices, op=op)
        with pytest.raises(NotImplementedError, match="Received: op="):
            hvd.grouped_allreduce([tf.ones([1]), slices], op=op)
    for factor in ("prescale_factor", "postscale_factor"):
        with pytest.raises(NotImplementedError, match=f"{factor}=2"):
            hvd.allreduce(slices, **{factor: 2.0})
    for call in (hvd.broadcast, hvd.broadcast_):
        with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank=9"):
            call([tf.Variable(1.0)], 9)
    with pytest.raises(ValueError, match="takes the place"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)
    sgd = keras.optimizers.SGD()
    for groups in (0, -1, "all"):
        with pytest.raises(ValueError, match="groups="):
            hvd.DistributedOptimizer(sgd, groups=groups)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    assert issubclass(ring.NotInitializedError, ValueError)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def check_tape() -> None:
    """Has what Horovod's has besides."""
    size, rank = hvd.size(), hvd.rank()
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    variables = [layer.kernel, keras.Variable([[1.0]])]
    with tf.GradientTape(persistent=True) as tape:
        loss = (rank + 1.0) * tf.reduce_sum(variables[0] + variables[1])
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=[layer])
    mean = (size + 1) / 2
    _, gradient = tape.gradient(loss, variables, use_generic_names=True)
    assert gradient.numpy() == mean
    local, shared = tape.get_local_and_global_gradients(loss, variables)
    assert [source for source, _ in local + shared] == variables
    np.testing.assert_allclose(local[0][1], [[(rank + 1) / size]])
    assert shared[0][1].numpy() == mean


def check_splits_may_leave_rows() -> None:
    size, rank = hvd.size(), hvd.rank()
    rows = tf.fill([size + 3], rank)
    received, splits = hvd.alltoall(rows, splits=tf.ones([size], tf.int32))
    assert received.numpy().tolist() == list(range(size))
    assert splits.numpy().tolist() == [1] * size
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.alltoall(rows, splits=[5] * size)


@pytest.mark.parametrize(
    "check",
    [
        check_averages_of_integers,
        check_gradients,
        check_compressors,
        check_errors,
        check_tape,
        check_splits_may_leave_rows,
    ],
)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        3,  # No power of two.
    ],
)
def test_semantics(rank_pool, size, check):
    rank_pool(size).run(check)


def loaded_in_a_set_worker(directory: str) -> tuple[float, bytes] | None:
    """A loaded model that ranks 1 and 2 train, with callbacks that they list."""
    members = ring.add_process_set([1, 2])
    found = None
    if members.included():
        plain = training.compile_model(training.build(1), keras.optimizers.SGD(0.1))
        plain.save(f"{directory}/{ring.rank()}.keras")
        model = keras.models.load_model(f"{directory}/{ring.rank()}.keras")
        ring.DistributedOptimizer(model.optimizer, process_set=members)
        part = ring.data.shard(training.dataset(48), process_set=members)
        with pytest.raises(ValueError, match=r"\[RK406\] rank 0 is no member"):
            only = ring.callbacks.RootOnly(keras.callbacks.Callback())
            training.fit(model, part, 4, callbacks=[only])
        callbacks = [
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(1),
            hvd_keras.callbacks.MetricAverageCallback(),
            hvd_keras.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1),
        ]
        training.fit(model, part, 4, epochs=2, callbacks=callbacks)
        rate = float(model.optimizer.learning_rate.numpy())
        found = rate, training.as_bytes(model.get_weights())
    ring.barrier()
    ring.remove_process_set(members)
    return found


def test_callbacks_are_of_the_ranks_that_train(rank_pool, tmp_path):
    outside, first, second = rank_pool(3).run(
        loaded_in_a_set_worker, args=(str(tmp_path),), timeout_s=60
    )

    assert outside is None
    assert first[0] == pytest.approx(0.2)
    assert first == second
