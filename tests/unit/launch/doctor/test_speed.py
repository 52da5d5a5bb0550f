"""How fast a connection is, measured against a real server."""

from __future__ import annotations

import socket
import threading

import pytest

from ring_keras.launch.doctor.speed import measure, reaches
from ring_keras.launch.doctor.speed_server import SpeedServer


def test_over_loopback() -> None:
    with SpeedServer(["127.0.0.1", "::1"]) as server:
        for host, port in server.addresses:
            speed = measure(host, port, server.key, streams=2, lasts_s=0.05)
            assert speed.bytes_per_s > 0
            assert 0 < speed.round_trip_s < 1
            assert speed.mtu >= 1280


def test_who_has_not_the_key_is_not_served() -> None:
    with SpeedServer(["127.0.0.1"]) as server:
        ((host, port),) = server.addresses
        assert reaches(host, port, server.key)
        assert not reaches(host, port, server.key[:-1] + "x")
        with socket.create_connection((host, port), 10) as stranger:
            stranger.sendall(b"x" * len(server.key))
            assert stranger.recv(1) == b""


def test_what_is_not_the_server_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH" * 20)).start()
        assert not reaches("127.0.0.1", other.getsockname()[1], "0" * 32)


def test_nobody_is_reached_after_its_end() -> None:
    server = SpeedServer(["127.0.0.1"])
    ((host, port),) = server.addresses
    server.close()

    assert not reaches(host, port, server.key)
    with pytest.raises(OSError):
        measure(host, port, server.key, streams=1, lasts_s=0.05)
