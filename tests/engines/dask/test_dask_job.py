"""Jobs on a real Dask cluster: a scheduler, and workers that are processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from support import functions_of_ranks
from support.processes import is_alive, wait_until

pytestmark = pytest.mark.engines
pytest.importorskip("dask", reason="`make test-engines`")
import dask  # noqa: E402
import dask.array as da  # noqa: E402
import dask.bag as db  # noqa: E402
import dask.dataframe as dd  # noqa: E402
import distributed  # noqa: E402
import pandas as pd  # noqa: E402

import ring_keras.dask as ring_dask  # noqa: E402
from ring_keras.dask.workers import workers_of  # noqa: E402

TESTS_DIR = Path(__file__).parents[2]


@contextlib.contextmanager
def cluster_of(workers: int, threads: int = 1) -> Iterator[distributed.Client]:
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=threads, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    functions_of_ranks.travel_by(cloudpickle)
    with cluster_of(2) as client:
        yield client


def test_every_worker_is_a_rank(client: distributed.Client) -> None:
    results = ring_dask.run(client, functions_of_ranks.told_sum, [10])

    assert results == [(0, 2, 30.0, []), (1, 2, 30.0, [])]


def test_variables_and_keyword_arguments_arrive(client: distributed.Client) -> None:
    def function(*, name: str) -> str | None:
        return os.environ.get(name)

    kwargs, env = {"name": "OF_THE_TEST"}, {"OF_THE_TEST": "here"}
    results = ring_dask.run(client, function, (), kwargs, num_proc=1, env=env)

    assert results == ["here"]


def test_ranks_share_a_worker_as_far_as_it_has_threads() -> None:
    with cluster_of(1, threads=3) as client:
        results = ring_dask.run(client, functions_of_ranks.told_sum, [1], num_proc=3)
        assert [result[:3] for result in results] == [(r, 3, 6.0) for r in range(3)]

        with pytest.raises(ValueError, match="num_proc=4: the cluster has 1 workers"):
            ring_dask.run(client, functions_of_ranks.told_sum, [1], num_proc=4)


def values_of(parts: list, only: list) -> tuple[list[int], list[int]]:
    return [int(v) for part in parts for v in part["x"]], [
        int(v) for block in only for v in block[:, 1]
    ]


def test_each_rank_gets_its_own_partitions(client: distributed.Client) -> None:
    frame = dd.from_pandas(pd.DataFrame({"x": range(70)}), npartitions=7)
    array = da.arange(24).reshape(12, 2).rechunk((3, 1))

    shares = ring_dask.run(
        client,
        values_of,
        [ring_dask.shard(frame)],
        {"only": ring_dask.shard(array)},
    )

    assert sorted(shares[0][0] + shares[1][0]) == list(range(70))
    assert sorted(len(share[0]) for share in shares) == [30, 40]
    assert sorted(shares[0][1] + shares[1][1]) == list(range(1, 24, 2))


def test_partitions_stay_where_they_are(client: distributed.Client) -> None:
    first, second = sorted(workers_of(client))
    parts = [
        client.submit(lambda v: [v], value, workers=[worker])
        for value, worker in enumerate([second, first, second, first])
    ]
    bag = db.from_delayed(parts)

    shares = ring_dask.run(client, lambda own: own, [ring_dask.shard(bag)])

    assert shares == [[[1], [3]], [[0], [2]]]


def test_what_belongs_together_stays_together(client: distributed.Client) -> None:
    first, second = sorted(workers_of(client))

    kept = []  # What nobody refers to is forgotten.

    def held_by(workers: list[str], name: str) -> db.Bag:
        parts = [
            client.submit(lambda v: [v], (name, number), workers=[worker])
            for number, worker in enumerate(workers)
        ]
        kept.extend(parts)
        return db.from_delayed(parts)

    images = held_by([first, second, first, second], "image")
    labels = held_by([second, second, first, first], "label")
    shards = [ring_dask.shard(images), ring_dask.shard(labels)]
    for own_images, own_labels in ring_dask.run(client, lambda *own: own, shards):
        assert [n for [(_, n)] in own_images] == [n for [(_, n)] in own_labels]


def test_other_partitions_of_as_many_rows_are_told(
    client: distributed.Client,
) -> None:
    images, labels = da.arange(8, chunks=2), da.arange(8, chunks=4)

    with pytest.raises(ValueError, match=r"\[2, 2, 2, 2\] and \[4, 4\] rows"):
        shards = [ring_dask.shard(images), ring_dask.shard(labels)]
        ring_dask.run(client, lambda *own: own, shards)


class OfTheUser:
    """Dask carries it, though no worker can import it."""


def test_partitions_may_hold_anything(client: distributed.Client) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    bag = db.from_sequence([OfTheUser(), OfTheUser()], npartitions=2)

    counts = ring_dask.run(client, lambda p: len(p), [ring_dask.shard(bag)])

    assert counts == [1, 1]


def test_too_few_partitions_are_told(client: distributed.Client) -> None:
    with pytest.raises(ValueError, match="2 ranks need a partition each"):
        ring_dask.run(client, values_of, [ring_dask.shard(da.arange(3, chunks=3))])
    with pytest.raises(TypeError, match="Received: list"):
        ring_dask.shard([1])


def test_workers_are_there_whatever_the_client_asks_besides(
    client: distributed.Client,
) -> None:
    """It replaces what its `scheduler_info()` returns, by one without workers."""
    often = {"distributed.client.scheduler-info-interval": "1ms"}
    with (
        dask.config.set(often),
        distributed.Client(client.scheduler.address) as asking,
    ):
        assert {len(workers_of(asking)) for _ in range(300)} == {2}


def test_the_rank_that_failed_is_named(client: distributed.Client) -> None:
    with pytest.raises(ring_dask.RankFailedError) as caught:
        ring_dask.run(client, functions_of_ranks.fails_on_rank_1, ["dies"])

    assert caught.value.rank == 1
    assert "was killed by SIGKILL" in str(caught.value)
    # The cluster serves the next job.
    test_every_worker_is_a_rank(client)


def test_a_lost_worker_ends_the_job() -> None:
    def loses_its_worker() -> None:
        rank, _ = functions_of_ranks.join()
        if rank == 1:
            os.kill(functions_of_ranks.worker_pid(), signal.SIGKILL)
        functions_of_ranks._native.barrier("never all")

    with cluster_of(2) as client:
        with pytest.raises(ring_dask.RankFailedError) as caught:
            ring_dask.run(client, loses_its_worker)

        assert caught.value.rank == 1
        assert "was lost with its Dask worker tcp://" in str(caught.value)
        # The nanny starts another.
        client.wait_for_workers(2, timeout=60)
        test_every_worker_is_a_rank(client)


# Ctrl-C for a program that waits, and a client that dies without a word.
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_client_ends(
    client: distributed.Client, number: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
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
                ring_dask.run(
                    client,
                    functions_of_ranks.writes_its_pid_and_waits,
                    [{str(tmp_path)!r}],
                )
            """
        )
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS_DIR)])}
    pids: list[int] = []

    def all_run() -> bool:
        pids[:] = [int(path.name) for path in tmp_path.iterdir() if path.suffix == ""]
        return len(pids) == 4

    with subprocess.Popen([sys.executable, script], env=env) as program:
        wait_until(all_run, "both ranks and what they have started run")
        program.send_signal(number)
        program.wait(60)

    wait_until(lambda: not any(map(is_alive, pids)), "all have ended")


def test_nothing_is_left_when_the_scheduler_ends(tmp_path: Path) -> None:
    with contextlib.ExitStack() as processes:

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "distributed.cli.dask_" + arguments[0]]
            command += [*arguments[1:], "--scheduler-file", str(tmp_path / "address")]
            process = subprocess.Popen(command, cwd=tmp_path)
            processes.callback(process.wait)
            processes.callback(process.kill)
            return process

        scheduler = start("scheduler", "--port=0", "--no-dashboard")
        for _ in range(2):
            start("worker", "--nthreads=1", "--no-nanny", "--no-dashboard")
        client = distributed.Client(scheduler_file=str(tmp_path / "address"))
        processes.callback(client.close, timeout=5)
        client.wait_for_workers(2, timeout=60)
        (tmp_path / "pids").mkdir()
        failed: list[BaseException] = []

        def run() -> None:
            function = functions_of_ranks.writes_its_pid_and_waits
            try:
                ring_dask.run(client, function, [str(tmp_path / "pids")])
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        pids: list[int] = []

        def all_run() -> bool:
            pids[:] = [int(path.name) for path in (tmp_path / "pids").iterdir()]
            return len(pids) == 4

        wait_until(all_run, "both ranks and what they have started run", 60)
        scheduler.kill()
        wait_until(lambda: not any(map(is_alive, pids)), "all have ended", 10)
        thread.join(60)
        assert failed
