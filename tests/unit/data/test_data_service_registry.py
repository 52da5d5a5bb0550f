"""The registry answers those who know its key, and says what is missing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from ring_keras.data.service.config import TfDataServiceConfig
from ring_keras.data.service.registry import Registry, RegistryClient
from ring_keras.errors import RingKerasError
from ring_keras.network.exchange import ask


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry(dispatchers=2, workers_per_dispatcher=2)
    yield made
    made.close()


@pytest.fixture
def client(registry: Registry) -> RegistryClient:
    return RegistryClient([registry.address], registry.key)


def test_it_listens_on_loopback_alone(registry):
    assert registry.address[0] == "127.0.0.1"


def test_dispatchers_and_workers_are_found(client):
    client.register_dispatcher(1, "10.0.0.1:5")
    client.register_worker_for_dispatcher(1, 2)
    client.register_worker_for_dispatcher(1, 3)

    assert client.wait_for_dispatcher_registration(1, timeout=10) == "10.0.0.1:5"
    client.wait_for_dispatcher_worker_registration(1, timeout=10)
    assert client.own_address() == "127.0.0.1"


def test_what_is_missing_is_named(client):
    client.register_dispatcher(0, "here:1")
    client.register_worker_for_dispatcher(0, 4)

    with pytest.raises(TimeoutError, match=r"its address is None"):
        client.wait_for_dispatcher_registration(1, timeout=0)
    with pytest.raises(TimeoutError, match=r"its workers are \[4\]"):
        client.wait_for_dispatcher_worker_registration(0, timeout=0)


def test_wrong_requests_are_told(client):
    client.register_dispatcher(0, "here:1")
    with pytest.raises(RingKerasError, match="already"):
        client.register_dispatcher(0, "there:1")
    with pytest.raises(RingKerasError, match="there are 2 dispatchers"):
        client.register_dispatcher(2, "here:1")
    with pytest.raises(RingKerasError, match="no such request"):
        client._ask(kind="run", command="anything")


def test_shutdown_ends_every_wait(client):
    client.shutdown()

    client.wait_for_shutdown()
    with pytest.raises(RingKerasError, match="has been shut down"):
        client.wait_for_dispatcher_registration(0, timeout=60)


def test_a_registry_that_is_gone_ends_the_wait_for_its_end(registry, client):
    registry.close()

    client.wait_for_shutdown()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        client.shutdown()


def test_who_does_not_know_the_key_gets_no_answer(registry, client):
    stranger = RegistryClient([registry.address], bytes(32))
    with pytest.raises(ConnectionError):
        stranger.register_dispatcher(0, "evil:1")
    with pytest.raises(ConnectionError):
        stranger.shutdown()

    with pytest.raises(TimeoutError, match="its address is None"):
        client.wait_for_dispatcher_registration(0, timeout=0)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 100, b"GET / HTTP/1.0\r\n\r\n" * 9],
    ids=["nothing", "ones", "http"],
)
def test_noise_does_no_harm(registry, client, content):
    with (
        socket.create_connection(registry.address, timeout=10) as connection,
        contextlib.suppress(OSError),  # It may hang up before all is sent.
    ):
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

    client.register_dispatcher(0, "here:1")


def test_a_request_cannot_be_played_back(registry):
    """What one connection carried means nothing on the next."""
    sent = []

    class Recording:
        def __init__(self, connection):
            self.recv = connection.recv
            self._connection = connection

        def sendall(self, content):
            sent.append(content)
            self._connection.sendall(content)

    with socket.create_connection(registry.address, timeout=10) as connection:
        ask(Recording(connection), registry.key, {"kind": "nothing"})
    with socket.create_connection(registry.address, timeout=10) as connection:
        connection.sendall(b"".join(sent))
        received = b""
        while piece := connection.recv(4096):
            received += piece
    assert len(received) == 32  # The registry's random number, and no answer.


def config() -> TfDataServiceConfig:
    return TfDataServiceConfig(
        dispatchers=1,
        workers_per_dispatcher=3,
        dispatcher_side="compute",
        addresses={"lo": [("127.0.0.1", 4242)]},
        key=bytes(range(32)),
    )


def test_the_file_holds_all_and_is_the_owners(tmp_path):
    path = tmp_path / "service.json"
    config().write(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert TfDataServiceConfig.read(path) == config()


def test_a_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "service.json"
    config().write(path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="mode 0640"):
        TfDataServiceConfig.read(path)


def test_a_missing_file_is_waited_for_in_vain(tmp_path):
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(tmp_path / "none", True, timeout=0)


@pytest.mark.parametrize("wrong", [{"dispatcher_side": "neither"}, {"dispatchers": 0}])
def test_wrong_layouts_are_refused(wrong):
    with pytest.raises(ValueError, match="Received"):
        TfDataServiceConfig(**{**config().__dict__, **wrong})
