"""Horovod's functions do here what they do there."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
import ring_keras.horovod.keras as hvd_keras
import ring_keras.horovod.tensorflow as hvd
import ring_keras.horovod.tensorflow.keras as hvd_tf_keras

SIZES = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(3, marks=pytest.mark.slow),
]


def check_collectives() -> None:
    size, rank = hvd.size(), hvd.rank()
    total = size * (size + 1) / 2
    mine = tf.fill([3, 2], rank + 1.0)

    def same(got, expected, **kwargs):
        np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape), **kwargs)

    same(hvd.allreduce(mine), total / size)
    same(hvd.allreduce(mine, average=False), total)
    same(hvd.allreduce(mine, op=hvd.Sum, name="a", device_dense="/cpu:0"), total)
    same(hvd.allreduce(mine, op=hvd.Max), size)
    same(hvd.allreduce(mine, op=hvd.Min), 1)
    same(hvd.allreduce(mine, compression=hvd.Compression.fp16), total / size, rtol=1e-3)
    same(hvd.allreduce(mine, op=hvd.Adasum), (size + 1) / 2, rtol=1e-6)
    for tensor in hvd.grouped_allreduce([mine, mine], op=hvd.Sum):
        same(tensor, total)
    rows = hvd.allgather(tf.fill([rank + 1, 2], rank))
    assert rows.shape == [int(total), 2]
    gathered = hvd.grouped_allgather([mine, tf.constant([rank])], name="pair")
    assert [tuple(tensor.shape) for tensor in gathered] == [(3 * size, 2), (size,)]
    same(hvd.broadcast(mine, size - 1), size)
    for part in hvd.grouped_reducescatter([tf.ones([size])] * 2, op=hvd.Sum):
        same(part, size)
    same(
        hvd.reducescatter(
            tf.ones([size]), compression=hvd.Compression.fp16, op=hvd.Sum
        ),
        size,
    )
    same(hvd.alltoall(tf.fill([size], rank)), np.arange(size))
    received, splits = hvd.alltoall(tf.fill([size], rank), splits=[1] * size)
    same(received, np.arange(size))
    same(splits, 1)
    variables = [tf.Variable(float(rank)), keras.Variable(float(rank))]
    returned = hvd.broadcast_(variables, root_rank=size - 1)
    assert [float(v.numpy()) for v in returned] == [size - 1] * 2
    variables = [tf.Variable(float(rank))]
    hvd.broadcast_variables(variables, root_rank=0)
    assert float(variables[0]) == 0
    assert hvd.broadcast_object({"rank": rank}, root_rank=0) == {"rank": 0}
    assert hvd.broadcast_object_fn(root_rank=0)([rank]) == [0]
    assert hvd.allgather_object(rank) == list(range(size))
    hvd.barrier()
    slices = tf.IndexedSlices(mine[:1], tf.constant([0]), tf.constant([3, 2]))
    summed = tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))
    same(summed[0], total)
    for module in (hvd_keras, hvd_tf_keras):
        same(module.allreduce(mine), total / size)
        same(module.allreduce(mine, op=hvd.Sum), total)
        same(module.allreduce(mine, average=False), total)
        assert module.allgather([rank]).shape == [size]
        same(module.broadcast(mine, 0), 1)
        same(module.reducescatter(tf.ones([size]), op=hvd.Sum), size)


def check_knowledge() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.is_initialized()
    assert hvd.is_homogeneous()
    assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert int(hvd.rank_op()) == rank
    assert int(hvd.size_op()) == size
    assert int(hvd.local_rank_op()) == rank
    assert int(hvd.local_size_op()) == size
    hvd.init(process_sets="dynamic")  # Again, without effect.


def check_process_sets() -> None:
    if hvd.size() == 1:
        return
    rank = hvd.rank()
    process_set = hvd.add_process_set(hvd.ProcessSet([0]))
    number = process_set.process_set_id
    assert process_set.included() == (rank == 0)
    assert int(hvd.process_set_included_op(number)) == int(rank == 0)
    assert int(hvd.size_op(number)) == 1
    assert int(hvd.process_set_included_op(99)) == -3
    with pytest.raises(ValueError, match="process_set_id=99"):
        hvd.size_op(99)
    if process_set.included():
        assert float(hvd.allreduce(5.0, process_set=process_set)) == 5.0
    assert hvd.remove_process_set(process_set)


def check_errors() -> None:
    """Of the class that Horovod's users catch, and the job goes on."""
    if hvd.size() == 1:
        return
    count = 3 + hvd.rank()
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.allreduce(tf.ones([count]), name="shape")
    with pytest.raises(tf.errors.FailedPreconditionError):
        hvd.broadcast(tf.ones([2]), root_rank=hvd.rank(), name="root")
    with pytest.raises(tf.errors.InvalidArgumentError):
        hvd.alltoall(tf.ones([2]), splits=[5] * hvd.size())
    assert float(hvd.allreduce(1.0)) == 1.0


def check_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    mean, own = (size + 1) / 2, rank + 1.0
    layers = [keras.layers.Dense(1, use_bias=False) for _ in range(2)]
    for layer in layers:
        layer.build((None, 1))
    variables = [layer.kernel for layer in layers]

    def gradients_of(make_tape, **options):
        with tf.GradientTape() as tape:
            loss = own * tf.reduce_sum(variables[0] + variables[1])
        gradients = make_tape(tape, **options).gradient(loss, variables)
        return [float(gradient[0, 0]) for gradient in gradients]

    assert gradients_of(hvd.DistributedGradientTape) == [mean] * 2
    assert gradients_of(hvd.DistributedGradientTape, op=hvd.Sum) == [size * mean] * 2
    for groups in (2, [[variables[1]], [variables[0]]]):
        assert gradients_of(hvd.DistributedGradientTape, groups=groups) == [mean] * 2
    np.testing.assert_allclose(
        gradients_of(hvd.PartialDistributedGradientTape, local_layers=[layers[0]]),
        [own / size, mean],
    )
    optimizer = hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0),
        local_layers=[layers[0]],
        scale_local_gradients=False,
    )
    before = [float(v.numpy()[0, 0]) for v in variables]
    optimizer.apply([tf.fill([1, 1], own)] * 2, variables)
    after = [float(v.numpy()[0, 0]) for v in variables]
    np.testing.assert_allclose(np.subtract(before, after), [own, mean], rtol=1e-5)


@pytest.mark.parametrize(
    "check",
    [
        check_collectives,
        check_knowledge,
        check_process_sets,
        check_errors,
        check_gradients,
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_functions(rank_pool, size, check):
    rank_pool(size).run(check)


def passes_worker():
    """Horovod adds up the passes of a step, unless told to average them."""
    size, rank = hvd.size(), hvd.rank()
    results = []
    for averaged in (False, True):
        variable = keras.Variable([0.0])
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=averaged,
        )
        for number in range(2):
            optimizer.apply_gradients([(tf.constant([rank + number + 1.0]), variable)])
        results.append(float(variable.numpy()[0]))
    mean = (size + 1) / 2
    return np.allclose(results, [-(2 * mean + 1), -(mean + 0.5)])


@pytest.mark.parametrize("size", SIZES)
def test_backward_passes(rank_pool, size):
    assert rank_pool(size).run(passes_worker) == [True] * size


class Own(keras.optimizers.SGD):
    """A user's own class."""


def load_worker(directory):
    """A loaded model's optimizer is distributed at once, without callbacks."""
    path = f"{directory}/model.keras"
    model = training.build(1)
    training.compile_model(model, hvd_tf_keras.DistributedOptimizer(Own(0.1)))
    training.fit(model, training.dataset(16), 4)
    if ring.rank() == 0:
        model.save(path)
    ring.barrier()
    loaded = hvd_tf_keras.load_model(path, custom_optimizers=[Own])
    assert type(loaded.optimizer) is Own
    x, y = training.arrays()
    part = slice(ring.rank(), 16, ring.size())
    loaded.fit(x[part], y[part], batch_size=4, shuffle=False, verbose=0)
    return training.as_bytes(loaded.get_weights())


@pytest.mark.slow
def test_load_model(rank_pool, tmp_path):
    first, second = rank_pool(2).run(load_worker, args=(str(tmp_path),))
    assert first == second


def local_variables_worker():
    """Each rank keeps what it says is its own."""
    size, rank = hvd.size(), hvd.rank()
    model = training.build(1 + rank)
    model.build((None, 6))
    training.compile_model(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    kept = model.layers[0].kernel
    before = kept.numpy()
    part = ring.data.shard(training.dataset(8 * size))
    callback = hvd_tf_keras.callbacks.BroadcastGlobalVariablesCallback(
        0, local_variables=[kept]
    )
    training.fit(model, part, 4, callbacks=[callback])
    return bool((kept.numpy() == before).all()), model.layers[1].kernel.numpy().tolist()


def test_local_variables_are_not_broadcast(rank_pool):
    (kept, others), (kept_too, same) = rank_pool(2).run(local_variables_worker)
    assert kept
    assert kept_too
    assert others == same
