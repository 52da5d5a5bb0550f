"""What users write, each public name at least once. For type checkers; never run."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from typing_extensions import assert_type

import ring_keras as ring


def train(epochs: int) -> dict[str, list[float]]:
    ring.init()
    ring.init(process_sets=[[0, 1], ring.ProcessSet([2, 3])])
    where: list[int] = [
        *(ring.rank(), ring.size(), ring.local_rank()),
        *(ring.local_size(), ring.cross_rank(), ring.cross_size()),
    ]
    assert_type(ring.is_initialized(), bool)
    print(ring.__version__.upper(), sum(where))
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("adam"), loss="mse")
    model.compile(
        ring.DistributedOptimizer(
            keras.optimizers.SGD(0.1),
            op=ring.Average,
            compression=ring.Compression.bf16,
            backward_passes_per_step=2,
            process_set=ring.global_process_set,
            groups=[model.trainable_variables],
        ),
        loss="mse",
    )
    model.compile(ring.DiLoCo("adamw", keras.optimizers.SGD(0.5), sync_every=50))
    model.compile(ring.DistributedOptimizer("adam", sync_every=50))
    x = np.ones((8, 4), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    history = model.fit(
        ring.data.shard(dataset, seed=1).batch(4),
        epochs=epochs,
        callbacks=[
            ring.callbacks.Distributed(
                base_lr=0.1, warmup_epochs=3, tensorboard="logs"
            ),
            ring.callbacks.BroadcastGlobalVariables(0),
            ring.callbacks.MetricAverage(),
            ring.callbacks.LearningRateWarmup(0.1, warmup_epochs=5, verbose=1),
            ring.callbacks.LearningRateSchedule(0.1, lambda epoch: 0.9**epoch),
            ring.callbacks.RootOnly(keras.callbacks.CSVLogger("log.csv")),
            ring.callbacks.BestModelCheckpoint(filepath="best.keras"),
            ring.callbacks.Elastic(backup_dir="backup"),
            ring.callbacks.Preemption("backup"),
            ring.callbacks.RingMetrics(),
            ring.callbacks.TensorBoard("logs"),
        ],
    )
    ring.predict(model, x, batch_size=4)
    ring.evaluate(model, x, x[:, :1], return_dict=True)
    ring.layers.synchronize_batch_normalization(model)
    ring.layers.average_moving_statistics(model)
    keras.Sequential([ring.layers.SyncBatchNormalization(momentum=0.9)])
    ring.schedules.Warmup(0.1, warmup_steps=100)
    losses: dict[str, list[float]] = history.history
    ring.shutdown()
    return losses


def collectives(tensor: tf.Tensor, variables: list[tf.Variable]) -> None:
    half = ring.add_process_set([0, 1])
    assert_type(half, ring.ProcessSet)
    ring.allreduce(tensor)
    ring.allreduce(np.ones(3, np.float32), ring.Sum, name="x", process_set=half)
    ring.allreduce(1.5, ring.ReduceOp.MAX, prescale_factor=0.5)
    ring.allreduce([1.0, 2.0], "min", compression="fp16")
    for op in (ring.Adasum, ring.Max, ring.Min, ring.Product):
        assert_type(op, ring.ReduceOp)
    values = ring.shared_empty((2, 3), "float32")
    average = ring.prepare_allreduce(values, out=values, name="values")
    print(average().mean())
    for reduced in ring.grouped_allreduce([tensor, tensor]):
        print(reduced)
    ring.allgather(tensor)
    ring.broadcast(tensor, root_rank=1)
    ring.broadcast_variables(variables, root_rank=0)
    received, splits = ring.alltoall(tensor, splits=[1, 2])
    print(received, splits)
    ring.reducescatter(tensor, op=ring.Sum)
    ring.barrier()
    assert_type(ring.join(), int)
    while not ring.any(False) and ring.all(True, process_set=half):
        pass
    assert_type(ring.agree_on(3), int)
    assert_type(ring.agree_on("run-7", name="name"), str)
    names: list[str] = ring.allgather_object("me")
    first: str = ring.broadcast_object("me", root_rank=0)
    print(names, first)
    ring.remove_process_set(half)
    with ring.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(tensor)
    tape.gradient(loss, variables)


def data(model: keras.Model) -> None:
    resume = ring.data.Resume()
    ring.data.shard([np.ones(4), np.ones(4)], seed=3, remainder="pad", resume=resume)
    ring.data.shard_files("*.tfrecord", seed=1)
    ring.data.shard_parquet("data/*.parquet", columns=["x"], resume=resume)
    ring.data.shard_arrow(["a.arrow"])
    ring.data.join(tf.data.Dataset.range(10).batch(2))
    ring.data.read_tar("a.tar", [".jpg", ".cls"])
    ring.data.weighted_step(np.ones(3, np.float32))
    model.fit(ring.monitoring.timed(tf.data.Dataset.range(3)))


def watch() -> None:
    ring.start_timeline("timeline.json")
    ring.stop_timeline()
    ring.breakpoint(rank=1)
    stats = ring.stats()
    assert_type(stats, ring.monitoring.Stats)
    assert_type(stats.rank, int)
    for step in stats.steps:
        assert_type(step, ring.monitoring.StepStats)
        assert_type(step.exposed_s, float)
    ring.monitoring.add_event("note", "half way")
    for collective in ring.monitoring.recent_collectives():
        assert_type(collective, ring.monitoring.Collective)
    ring.monitoring.dump("a test")


def elastic(model: keras.Model) -> None:
    state = ring.elastic.KerasState(model, epoch=0)

    @ring.elastic.run
    def loop(state: ring.elastic.KerasState) -> int:
        state.commit()
        return 3

    assert_type(loop(state), int)
    ring.elastic.ObjectState(epoch=0).commit()
    ring.elastic.TensorFlowState(model.trainable_variables, epoch=0).restore()


def errors() -> None:
    try:
        ring.barrier()
    except ring.PeerLostError as error:
        assert isinstance(error, ring.CommunicationError)
    except (ring.RankMismatchError, ring.CorruptDataError) as error:
        print(error)
    except ring.CollectiveTimeoutError:
        raise
    except (ring.NotInitializedError, ring.RingKerasError) as error:
        assert isinstance(error, ring.errors.RingKerasError)
        raise SystemExit(str(error)) from None


def jobs() -> None:
    assert_type(ring.run(train, [3], np=2), list[dict[str, list[float]]])
    try:
        ring.run(train, kwargs={"epochs": 3}, np=2, options=["--bind-to", "cores"])
    except ring.RankFailedError as error:
        assert_type(error, ring.RankFailedError)
    print(ring.verify.compare(lambda: train(1)).title)
