"""A job on Dask's workers of several hosts, which are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.elastic_functions import Job, await_sizes
from support.network import Network

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
pytest.importorskip("dask", reason="`make test-engines`")

TESTS_DIR = Path(__file__).parents[2]

PROGRAM = """
    import json, sys

    import cloudpickle
    import dask.array as da
    import distributed
    from support import engine_only

    import ring_keras.dask as ring_dask

    cloudpickle.register_pickle_by_value(engine_only)

    def where(blocks):
        import socket

        import numpy as np

        from ring_keras import _native

        rank, size = engine_only.join()
        total = _native.allreduce(np.array([rank + 1.0]), "sum", "total")
        links = [_native.transport_to(r) for r in range(size)]
        rows = sorted(int(row) for block in blocks for row in block)
        return socket.gethostname(), float(total[0]), links, rows

    with distributed.Client(sys.argv[1]) as client:
        client.wait_for_workers(3, timeout=120)
        rows = ring_dask.shard(da.arange(12, chunks=2))
        print(json.dumps(ring_dask.run(client, where, [rows])))
"""


ELASTIC_PROGRAM = """
    import json, sys

    import distributed

    import ring_keras.dask as ring_dask

    def where():
        import socket

        import tensorflow as tf

        import ring_keras as ring

        ring.init()
        total = ring.allreduce(tf.constant(ring.rank() + 1.0), op=ring.Sum)
        return socket.gethostname(), float(total)

    with distributed.Client(sys.argv[1]) as client:
        client.wait_for_workers(2, timeout=120)
        print(json.dumps(ring_dask.run_elastic(client, where, min_workers=2)))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    hosts = Network(3)
    try:
        hosts.make()
    except (OSError, subprocess.CalledProcessError) as error:
        hosts.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield hosts
    hosts.remove()


# Until there is a file "stop", and two ranks again.
TRAINING_PROGRAM = """
    import json, pathlib, sys

    import cloudpickle
    import distributed
    from support import elastic_functions, processes

    import ring_keras.dask as ring_dask

    for module in (elastic_functions, processes):
        cloudpickle.register_pickle_by_value(module)

    with distributed.Client(sys.argv[1]) as client:
        client.wait_for_workers(2, timeout=120)
        results = ring_dask.run_elastic(
            client,
            elastic_functions.train,
            [pathlib.Path.cwd(), 2],
            min_workers=1,
            max_workers=2,
        )
        print(json.dumps(results))
"""


def output_of(
    program: str,
    network: Network,
    worker_hosts: Sequence[int],
    directory: Path,
    disturb: Callable[[Callable[[int], None]], None] = lambda start: None,
) -> str:
    """What a program prints beside the scheduler, whose workers are on those hosts.

    Meanwhile `disturb` is called, with a function that starts one on another host.
    """
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS_DIR)])}
    scheduler = f"tcp://{network.addresses[0]}:8786"
    (directory / "program.py").write_text(textwrap.dedent(program))

    def command(host: int, *words: str) -> list[str]:
        """Python on a host with a name of its own."""
        named = ["sh", "-c", f'hostname host{host} && exec "$@"', "sh"]
        alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--uts"]
        return [*network.command(host, *alone), *named, sys.executable, *words]

    with contextlib.ExitStack() as processes:

        def start(host: int, what: str, *words: str) -> None:
            own = [f"--host={network.addresses[host]}", "--no-dashboard", *words]
            process = subprocess.Popen(
                command(host, "-m", f"distributed.cli.dask_{what}", *own),
                cwd=directory,
                # Each process has its host name in a namespace of its own.
                env=env | {"RING_KERAS_HOST_NAME": f"host{host}"},
            )
            processes.callback(process.wait)
            processes.callback(process.kill)

        start(0, "scheduler", "--port=8786")

        def start_worker(host: int) -> None:
            start(host, "worker", scheduler, "--nthreads=1", "--no-nanny")

        for host in worker_hosts:
            start_worker(host)
        printed, errors = directory / "printed", directory / "errors"
        running = subprocess.Popen(
            command(0, str(directory / "program.py"), scheduler),
            stdout=processes.enter_context(printed.open("w")),
            stderr=processes.enter_context(errors.open("w")),
            cwd=directory,
            env=env,
        )
        processes.callback(running.wait)
        processes.callback(running.kill)
        disturb(start_worker)
        running.wait(150)

    assert running.returncode == 0, errors.read_text()[-4000:]
    return printed.read_text()


def test_ranks_are_numbered_host_by_host(network: Network, tmp_path: Path) -> None:
    # Those of a host do not come one after the other.
    output = output_of(PROGRAM, network, [1, 2, 1], tmp_path)

    names, totals, links, rows = zip(*json.loads(output), strict=True)
    assert names == ("host1", "host1", "host2")
    assert totals == (6.0, 6.0, 6.0)
    assert links[0] == ["self", "shm", "tcp"]
    assert links[2] == ["tcp", "tcp", "self"]
    assert sorted(row for share in rows for row in share) == list(range(12))
    assert [len(share) for share in rows] == [4, 4, 4]


def test_ranks_of_an_elastic_job_meet(network: Network, tmp_path: Path) -> None:
    output = output_of(ELASTIC_PROGRAM, network, [1, 2], tmp_path)

    results = json.loads(output.splitlines()[-1])
    assert sorted(results) == [["host1", 3.0], ["host2", 3.0]]


@pytest.mark.slow  # A minute, most of which is silence.
@pytest.mark.timeout(400)
def test_the_rank_of_a_host_that_is_cut_off_is_replaced(
    network: Network, tmp_path: Path
) -> None:
    """The scheduler still has its worker, of which nobody knows what it does."""

    def disturb(start_worker: Callable[[int], None]) -> None:
        job = Job(tmp_path)
        await_sizes(job, 2, "[2]")
        cut = network.command(1, "ip", "link", "set", "eth0", "down")
        subprocess.run(cut, check=True)
        await_sizes(job, 1, "[2, 1]")
        start_worker(0)
        await_sizes(job, 2, "[2, 1, 2]")
        (tmp_path / "stop").touch()

    output = output_of(TRAINING_PROGRAM, network, [1, 2], tmp_path, disturb)

    results = json.loads(output.splitlines()[-1])
    assert [rank for rank, *_ in results] == [0, 1]
    assert all(total == step for _, _, total, step, _ in results)
