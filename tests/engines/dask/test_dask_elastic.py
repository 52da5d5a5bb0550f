"""Functions whose ranks come and go, on a cluster whose workers do."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from support import elastic_functions, functions_of_ranks, processes
from support.elastic_functions import (
    Job,
    await_sizes,
    job_in,
    note,
    process_above,
    run_while,
)
from support.processes import wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]
pytest.importorskip("dask", reason="`make test-engines`")
import dask.bag as db  # noqa: E402
import distributed  # noqa: E402

from ring_keras.dask import RankFailedError, run_elastic, shard  # noqa: E402
from ring_keras.dask.workers import workers_of  # noqa: E402

TESTS_DIR = Path(__file__).parents[2]
# The workers do not have the tests' modules.
for module in (elastic_functions, processes, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)
functions_of_ranks.travel_by(cloudpickle)


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: distributed.LocalCluster) -> Iterator[distributed.Client]:
    with distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client
        wait_until(lambda: not tasks_of(client), "no task is left")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with job_in(tmp_path) as job:
        yield job


def tasks_of(client: distributed.Client) -> list[str]:
    return client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks])


def worker_of(pid: int) -> int:
    """The process above a rank's, which a nanny or a shell has started."""
    return process_above(pid, b"spawn_main")


def total(factor: int) -> tuple[int, int, float, str | None]:
    """Of all ranks; and how many threads each has."""
    import tensorflow as tf

    import ring_keras as ring

    ring.init()
    found = float(
        ring.allreduce(tf.constant(factor * (ring.rank() + 1.0)), op=ring.Sum)
    )
    return ring.rank(), ring.size(), found, os.environ.get("TF_NUM_INTRAOP_THREADS")


def fit(directory: Path, size: int) -> tuple[int, int, list[float], list[int]]:
    """Trains until there is a file "stop", and the job has its size again."""
    import keras
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    ring.init()
    sizes: list[int] = []

    class Notes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if sizes[-1:] != [ring.size()]:
                sizes.append(ring.size())
                note(directory, "sizes", sizes)

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            # One rank is enough: they agree.
            stops = (directory / "stop").exists() and ring.size() == size
            self.model.stop_training |= stops

    images = np.random.default_rng(1).random((64, 8), dtype="float32")
    rows = tf.data.Dataset.from_tensor_slices((images, images.sum(axis=1)))
    model.fit(
        ring.data.shard(rows, seed=1).batch(8),
        epochs=100_000,
        shuffle=False,
        verbose=0,
        callbacks=[ring.callbacks.Elastic(), Notes()],
    )
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    return ring.rank(), os.getpid(), weights.tolist(), sizes


def test_a_fit_goes_on_when_a_worker_is_killed_and_its_nanny_starts_another(
    client: distributed.Client, job: Job
) -> None:
    before: set[int] = set()

    def kill() -> None:
        before.update(map(int, job.notes("sizes")))
        os.kill(worker_of(min(before)), signal.SIGKILL)
        await_sizes(job, 1, "[2, 1]")
        await_sizes(job, 1, "[2, 1, 2]")

    ranks, pids, weights, sizes = zip(
        *run_while(
            functools.partial(run_elastic, client),
            job,
            kill,
            fit,
            min_workers=1,
            max_workers=2,
        ),
        strict=True,
    )

    assert ranks == (0, 1)
    assert weights[0] == weights[1]
    assert sorted(sizes) == [[2], [2, 1, 2]]
    assert set(pids) & before == before - {min(before)}


@contextlib.contextmanager
def worker_process(
    client: distributed.Client, directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker without a nanny, which has joined the client's cluster."""
    before = len(workers_of(client))
    command = [sys.executable, "-m", "distributed.cli.dask_worker"]
    command += [client.scheduler.address, "--nthreads=1", "--no-nanny"]
    with subprocess.Popen([*command, "--no-dashboard"], cwd=directory) as process:
        try:
            client.wait_for_workers(before + 1, timeout=60)
            yield process
        finally:
            process.kill()


def test_the_job_goes_on_with_fewer_until_others_come(job: Job, tmp_path: Path) -> None:
    with (
        distributed.Client(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as client,
        contextlib.ExitStack() as workers,
    ):
        second = workers.enter_context(worker_process(client, tmp_path))

        def replace() -> None:
            process = next(iter(job.notes("sizes")))
            os.kill(int(process), signal.SIGKILL)
            await_sizes(job, 1, "[2, 1]")
            await_sizes(job, 2, "[2, 1, 2]")
            second.kill()
            await_sizes(job, 1, "[2, 1, 2, 1]")
            workers.enter_context(worker_process(client, tmp_path))
            await_sizes(job, 2, "[2, 1, 2, 1, 2]")

        results = run_while(
            functools.partial(run_elastic, client),
            job,
            replace,
            min_workers=1,
            max_workers=2,
        )

    assert [rank for rank, *_ in results] == [0, 1]
    assert [sizes for *_, sizes in results] == [[2, 1, 2, 1, 2]] * 2
    assert all(total == step for _, _, total, step, _ in results)


def test_no_rank_waits_for_a_worker_that_is_busy(
    client: distributed.Client, job: Job
) -> None:
    busy, _ = sorted(workers_of(client))
    end = distributed.Event("end of the test", client=client)
    waits = client.submit(end.wait, workers=[busy], pure=False)
    wait_until(lambda: bool(client.processing()[busy]), "it is busy")
    try:
        results = run_elastic(
            client, total, [10], min_workers=1, max_workers=2, env=job.env
        )
    finally:
        end.set()
        waits.result(60)

    assert results == [(0, 1, 10.0, "1")]


def test_the_rank_that_failed_is_named(client: distributed.Client, job: Job) -> None:
    def fail() -> None:
        import ring_keras as ring

        ring.init()
        if ring.rank() == 1:
            raise ValueError("of the test")
        ring.barrier()

    with pytest.raises(RankFailedError, match="ValueError: of the test") as raised:
        run_elastic(client, fail, min_workers=2, reset_limit=0, env=job.env)

    assert raised.value.rank == 1
    assert "raise ValueError" in raised.value.details


class Stranger:
    """Whose module no rank can import."""

    def __reduce__(self) -> tuple[Any, ...]:
        return __import__, ("a_module_of_the_test",)


def test_a_function_that_no_rank_can_load_ends_the_job(
    client: distributed.Client, job: Job
) -> None:
    with pytest.raises(RankFailedError, match="No module named 'a_module_of_the_test'"):
        run_elastic(client, print, [Stranger()], min_workers=2, env=job.env)


def test_workers_on_which_agents_do_not_start_end_the_job(
    client: distributed.Client, job: Job
) -> None:
    def set_directory(path: str | None) -> None:
        tempfile.tempdir = path

    client.run(set_directory, str(job.directory / "nowhere"))
    try:
        with pytest.raises(RankFailedError, match="3 of Dask's tasks in a row") as told:
            run_elastic(client, print, min_workers=2, env=job.env)
    finally:
        client.run(set_directory, None)

    assert "No such file or directory" in str(told.value)


def test_a_restart_of_the_cluster_ends_the_job(
    client: distributed.Client, job: Job
) -> None:
    def restart() -> None:
        wait_until(lambda: len(list(job.directory.iterdir())) == 4, "both run", 60)
        with distributed.Client(client.scheduler.address) as another:
            another.restart()

    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(restart)
        with pytest.raises(RankFailedError, match="cancelled the ranks' tasks"):
            function = functions_of_ranks.writes_its_pid_and_waits
            run_elastic(
                client, function, [str(job.directory)], min_workers=2, env=job.env
            )
        restarted.result(60)


# Ctrl-C for a program that waits, and a client that dies without a word.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_client_ends(
    client: distributed.Client, job: Job, number: signal.Signals
) -> None:
    notes = job.directory / "pids"
    notes.mkdir()
    script = job.directory / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import distributed, cloudpickle, signal
            from support import functions_of_ranks
            import ring_keras.dask as ring_dask

            # Shells start what is in the background with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            functions_of_ranks.travel_by(cloudpickle)
            with distributed.Client({client.scheduler.address!r}) as client:
                ring_dask.run_elastic(
                    client,
                    functions_of_ranks.writes_its_pid_and_waits,
                    [{str(notes)!r}],
                    min_workers=2,
                    env={job.env!r},
                )
            """
        )
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS_DIR)])}
    with subprocess.Popen([sys.executable, script], env=env) as program:
        try:
            wait_until(lambda: len(list(notes.iterdir())) == 4, "all run", 60)
        finally:
            program.send_signal(number)
        program.wait(60)

    wait_until(lambda: not job.processes(), "no process is left")


def test_nothing_is_left_when_the_scheduler_ends(job: Job, tmp_path: Path) -> None:
    with contextlib.ExitStack() as processes:
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        command += ["--port=0", "--no-dashboard", "--scheduler-file=address"]
        scheduler = processes.enter_context(subprocess.Popen(command, cwd=tmp_path))
        processes.callback(scheduler.kill)
        client = distributed.Client(scheduler_file=str(tmp_path / "address"))
        processes.callback(client.close, timeout=5)
        for _ in range(2):
            processes.enter_context(worker_process(client, tmp_path))
        notes = tmp_path / "pids"
        notes.mkdir()

        def end() -> None:
            wait_until(lambda: len(list(notes.iterdir())) == 4, "both run", 60)
            scheduler.kill()

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(RankFailedError, match="lost Dask's scheduler"):
            function = functions_of_ranks.writes_its_pid_and_waits
            run_elastic(client, function, [str(notes)], min_workers=2, env=job.env)
        thread.join(60)
        wait_until(lambda: not job.processes(), "no process is left", 10)


def test_shards_are_refused(client: distributed.Client) -> None:
    with pytest.raises(ValueError, match="shard\\(\\) divides a collection"):
        run_elastic(client, print, [shard(db.from_sequence([1]))], min_workers=1)


@pytest.mark.parametrize(
    "numbers", [{"min_workers": 0}, {"min_workers": 2, "max_workers": 1}]
)
def test_numbers_that_make_no_sense(
    client: distributed.Client, numbers: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="Received: "):
        run_elastic(client, print, **numbers)
