"""Ray Train's workers as ranks, on a cluster of two nodes."""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import trips
from support.processes import wait_until_dead

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
ray = pytest.importorskip("ray", reason="`make test-engines`")
pytest.importorskip("ray.train", reason="`make test-engines`")
import ring_keras.ray as ring_ray  # noqa: E402

# The workers do not have the tests' modules.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEED = 1
ROWS, FEATURES, BATCH = 64, 4, 8


def run(
    function: Any,
    storage: str,
    config: dict[str, Any] | None = None,
    *,
    workers: int = 2,
    placement: str = "PACK",
    max_failures: int = 0,
    env: dict[str, str] | None = None,
    **kwargs: Any,
) -> Any:
    return ring_ray.RingTrainer(
        function,
        train_loop_config={"storage": storage, **(config or {})},
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers, placement_strategy=placement
        ),
        run_config=ray.train.RunConfig(
            storage_path=storage,
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            worker_runtime_env={"env_vars": env or {}},
        ),
        **kwargs,
    ).fit()


def write(config: dict[str, Any], name: str, text: object) -> None:
    directory = Path(config["storage"], "told")
    directory.mkdir(parents=True, exist_ok=True)
    Path(directory, name).write_text(str(text))


def told(storage: str, prefix: str) -> list[str]:
    paths = sorted(Path(storage, "told").glob(f"{prefix}*"))
    return [path.read_text() for path in paths]


@pytest.fixture
def no_worker_is_left(cluster: Any, storage: str) -> Iterator[None]:
    yield
    wait_until_dead([int(pid) for pid in told(storage, "pid.")], 60)


pytestmark.append(pytest.mark.usefixtures("no_worker_is_left"))


def join(config: dict[str, Any]) -> tuple[int, int]:
    import ring_keras as ring

    ring.init()
    write(config, f"pid.{ring.rank()}.{os.getpid()}", os.getpid())
    return ring.rank(), ring.size()


def arrays() -> tuple[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(SEED)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return x, x.sum(axis=1, keepdims=True)


def build_model() -> Any:
    import keras

    import ring_keras as ring

    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(optimizer, loss="mse")
    return model


def train(config: dict[str, Any]) -> None:
    """Five epochs, or what is left of them; rank 1 may die in the fourth."""
    import keras

    import ring_keras as ring

    rank, size = join(config)
    model, epochs = ring_ray.last_model() or (build_model(), 0)
    write(config, f"began.{time.monotonic()}.{rank}", epochs)

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if rank == 1 and self.model.optimizer.iterations == 3 * 4 + 1:
                if config.get("dies") and epochs == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if config.get("raises"):
                    raise ValueError("of the test")

    # Every rank its own half of each batch.
    x, y = (
        array.reshape(-1, size, BATCH, array.shape[1])[:, rank].reshape(
            -1, array.shape[1]
        )
        for array in arrays()
    )
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=5,
        initial_epoch=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
            ring_ray.ReportCheckpoint(),
            Fail(),
        ],
    )
    write(config, f"weights.{rank}", [w.tobytes().hex() for w in model.get_weights()])


def test_workers_are_ranks_by_ray_s_numbers(cluster: Any, storage: str) -> None:
    def function(config: dict[str, Any]) -> None:
        import ring_keras as ring
        from ring_keras import _native

        rank, size = join(config)
        context = ray.train.get_context()
        assert rank == context.get_world_rank()
        assert size == context.get_world_size() == 3
        assert ring.local_rank() == context.get_local_rank()
        assert ring.local_size() == context.get_local_world_size()
        assert {_native.transport_to(r) for r in range(3)} == {"self", "shm"}
        nodes = ring.allgather_object(ray.get_runtime_context().get_node_id())
        assert nodes == sorted(nodes, key=nodes.index)  # Node by node.
        assert len(set(nodes)) == 2
        token_file = Path(os.environ["RING_KERAS_TOKEN_FILE"])
        assert token_file.stat().st_mode & 0o777 == 0o600
        write(config, f"token.{rank}", token_file.read_text())
        write(config, f"token_file.{rank}", token_file)
        write(config, f"environment.{rank}", dict(os.environ))

    run(function, storage, workers=3, placement="SPREAD")

    (token,) = set(told(storage, "token."))
    assert len(token) == 64
    assert token not in "".join(told(storage, "environment."))
    session = ray._private.worker._global_node.get_session_dir_path()
    files = [path for path in Path(session).rglob("*") if path.is_file()]
    assert not [p for p in files if token in p.read_text(errors="replace")]
    # In memory alone.
    assert all(
        re.fullmatch(r"/proc/\d+/fd/\d+", path) for path in told(storage, "token_file")
    )


def test_resumes_after_a_kill_with_the_same_numbers(cluster: Any, storage: str) -> None:
    undisturbed = run(train, f"{storage}/undisturbed")
    result = run(train, storage, {"dies": True}, max_failures=1)

    (weights,) = set(told(f"{storage}/undisturbed", "weights."))
    assert set(told(storage, "weights.")) == {weights}
    first, again = told(storage, "began.")[:2], told(storage, "began.")[2:]
    assert first == ["0", "0"]
    # Ray Train may not have taken the last report of a worker that dies.
    assert again in (["1", "1"], ["2", "2"], ["3", "3"])
    assert result.metrics["loss"] == undisturbed.metrics["loss"]
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "model.keras").is_file()


@pytest.mark.parametrize(("how", "text"), [("raises", "of the test"), ("dies", "")])
def test_the_worker_that_failed_is_named(
    cluster: Any, storage: str, how: str, text: str
) -> None:
    with pytest.raises(ray.train.WorkerGroupError) as caught:
        run(train, storage, {how: True})

    failures = caught.value.worker_failures
    if 1 in failures:
        assert text in str(failures[1])
    if 0 in failures:
        assert "rank 1" in str(failures[0])
        assert text in str(failures[0])
    assert failures


def test_a_rank_that_ends_early_is_not_waited_for(cluster: Any, storage: str) -> None:
    def function(config: dict[str, Any]) -> None:
        import tensorflow as tf

        import ring_keras as ring

        rank, _ = join(config)
        if rank == 1:
            return
        ring.allreduce(tf.constant(1.0))

    with pytest.raises(ray.train.WorkerGroupError) as caught:
        run(function, storage)

    assert list(caught.value.worker_failures) == [0]
    assert "left: its function ended" in str(caught.value)


def test_trains_on_shards_of_ray_data(cluster: Any, storage: str) -> None:
    def function(config: dict[str, Any]) -> None:
        rank, _ = join(config)
        shard = ray.train.get_dataset_shard("train")
        dataset = shard.to_tf("x", "y", batch_size=BATCH)
        write(config, f"shard.{rank}", sorted(float(y) for _, b in dataset for y in b))
        model = build_model()
        history = model.fit(dataset, epochs=3, verbose=0).history["loss"]
        assert history[-1] < history[0]
        write(config, f"weights.{rank}", [w.tolist() for w in model.get_weights()])

    x, y = arrays()
    rows = [{"x": a, "y": float(b[0])} for a, b in zip(x, y, strict=True)]
    run(function, storage, datasets={"train": ray.data.from_items(rows)})

    assert len(set(told(storage, "weights."))) == 1
    shards = [ast.literal_eval(text) for text in told(storage, "shard.")]
    assert [len(shard) for shard in shards] == [ROWS // 2] * 2
    assert sorted(shards[0] + shards[1]) == sorted(float(b[0]) for b in y)


def join_noted(config: dict[str, Any]) -> None:
    """Keeps what all workers have entered until they call this."""
    noted = Path(config["noted"])
    noted.with_suffix(".so_far").write_bytes(noted.read_bytes())
    join(config)


def test_a_job_enters_what_the_page_lists(storage: str, tmp_path: Path) -> None:
    traced = trips.TripsOfPrograms(tmp_path, "default_worker.py")
    noted = traced.noted_of("default_worker.py")

    with trips.Trip() as here:
        run(join_noted, storage, {"noted": str(noted)}, env=traced.env)

    caller, _, worker = trips.tables_of("One job in Ray")
    assert trips.differences(here.files, [caller]) == []
    noted.with_suffix(".so_far").rename(noted)
    assert trips.differences(traced.files_of("default_worker.py"), [worker]) == []
