"""A compute job prepares the data of a training job."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from support.network import Network

import ring_keras as ring
from ring_keras.data.service import (
    TfDataServiceConfig,
    send_to_data_service,
    servers,
    tf_data_service,
)

COUNT = 40
RANKS = 2


class ComputeJob:
    """`ringrun -np 2 ring data-service`, as a context manager."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.config_file = directory / "service.json"
        self._log = directory / "service.log"
        launcher = [sys.executable, "-m", "ring_keras.launch", "-np", str(RANKS)]
        service = [sys.executable, "-m", "ring_keras.data.service"]
        self._command = [*launcher, *service, str(self.config_file), *options]

    def __enter__(self) -> TfDataServiceConfig:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return TfDataServiceConfig.read(
            self.config_file, wait_for_file_creation=True, timeout=90
        )

    def __exit__(self, exception_type: object, *_: object) -> None:
        try:
            if self._process.poll() is None and self.config_file.exists():
                config = TfDataServiceConfig.read(self.config_file)
                config.compute_client().shutdown()
            returncode = self._process.wait(60)
        finally:
            self._process.kill()
        if exception_type is None:
            assert returncode == 0, self._log.read_text()[-4000:]
            assert not self.config_file.exists()


def squares() -> tf.data.Dataset:
    return tf.data.Dataset.range(COUNT).map(lambda x: x * x).batch(1)


def own_pass_worker(config_file):
    config = TfDataServiceConfig.read(config_file)
    dataset = send_to_data_service(squares(), config, ring.rank(), ring.size())
    epochs = [[int(x[0]) for x in dataset.as_numpy_iterator()] for _ in range(2)]
    # No dispatcher may be asked once the compute job has been ended.
    ring.barrier()
    return epochs


@pytest.mark.slow
@pytest.mark.parametrize("dispatchers", [1, RANKS])
def test_every_rank_gets_the_whole_dataset(rank_pool, tmp_path, dispatchers):
    with ComputeJob(tmp_path, f"--dispatchers={dispatchers}") as config:
        assert (config.dispatchers, config.timeout) == (dispatchers, 60)
        worker = functools.partial(own_pass_worker, str(tmp_path / "service.json"))
        results = rank_pool(RANKS).run(worker, timeout_s=90)

    for epochs in results:
        assert [sorted(items) for items in epochs] == [
            [x * x for x in range(COUNT)]
        ] * 2


def shared_pass_worker(config_file):
    config = TfDataServiceConfig.read(config_file)
    dataset = ring.data.join(
        send_to_data_service(
            squares(), config, ring.rank(), ring.size(), reuse_dataset=True
        )
    )
    epochs = [[x.tolist() for x in dataset.as_numpy_iterator()] for _ in range(2)]
    ring.barrier()
    return epochs


@pytest.mark.slow
def test_ranks_share_one_pass_in_as_many_steps(rank_pool, tmp_path):
    with ComputeJob(tmp_path):
        worker = functools.partial(shared_pass_worker, str(tmp_path / "service.json"))
        results = rank_pool(RANKS).run(worker, timeout_s=90)

    for parts in zip(*results, strict=True):
        assert len({len(batches) for batches in parts}) == 1
        items = list(itertools.chain(*itertools.chain(*parts)))
        assert sorted(items) == [x * x for x in range(COUNT)]


def round_robin_worker(config_file):
    config = TfDataServiceConfig.read(config_file)
    dataset = send_to_data_service(
        squares().repeat(),
        config,
        ring.rank(),
        ring.size(),
        processing_mode="parallel_epochs",
        reuse_dataset=True,
        round_robin=True,
    )
    batches = [int(x[0]) for x in dataset.take(10).as_numpy_iterator()]
    ring.barrier()
    return batches


@pytest.mark.slow
def test_ranks_take_turns(rank_pool, tmp_path):
    with ComputeJob(tmp_path):
        worker = functools.partial(round_robin_worker, str(tmp_path / "service.json"))
        results = rank_pool(RANKS).run(worker, timeout_s=90)

    # A round's batches come from one worker, in its order.
    for rank, batches in enumerate(results):
        assert len(batches) == 10
        assert all(round(x**0.5) % RANKS == rank for x in batches)


def training_side_worker(config_file):
    config = TfDataServiceConfig.read(config_file)
    with pytest.raises(RuntimeError, match="compute side"):
        send_to_data_service(squares(), config, ring.rank())
    with tf_data_service(config, ring.rank()) as address:
        dataset = squares().apply(
            tf.data.experimental.service.distribute(
                processing_mode="distributed_epoch", service=address
            )
        )
        items = [int(x[0]) for x in dataset.as_numpy_iterator()]
        ring.barrier()
    return address, sorted(items)


@pytest.mark.slow
@pytest.mark.parametrize("dispatchers", [1, RANKS])
def test_dispatchers_in_the_training_job(rank_pool, tmp_path, dispatchers):
    options = [f"--dispatchers={dispatchers}", "--dispatcher-side=training"]
    with ComputeJob(tmp_path, *options):
        worker = functools.partial(training_side_worker, str(tmp_path / "service.json"))
        results = rank_pool(RANKS).run(worker, timeout_s=90)

    assert len({address for address, _ in results}) == dispatchers
    for _, items in results:
        assert items == [x * x for x in range(COUNT)]


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    made = Network(2)
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        made.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield made
    made.remove()


def reaches(network: Network, host: int, address: str) -> bool:
    def connect() -> bool:
        name, _, port = address.rpartition(":")
        try:
            socket.create_connection((name, int(port)), timeout=10).close()
        except ConnectionRefusedError:
            return False
        return True

    return network.inside(host, connect)


def test_servers_of_one_host_are_deaf_to_others(network):
    own = network.addresses[0]
    # The socket belongs to the namespace of the thread that makes it.
    for host, is_open in [(own, True), ("127.0.0.1", False)]:
        server = servers.dispatcher(host)
        address = network.inside(0, server.__enter__)
        try:
            from_outside = f"{own}:{address.rpartition(':')[2]}"
            assert reaches(network, 1, from_outside) == is_open
            assert reaches(network, 0, address)
        finally:
            server.__exit__(None, None, None)
