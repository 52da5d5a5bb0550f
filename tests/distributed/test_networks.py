"""Which network ranks of several hosts take, as network namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.hosts import run_on
from support.network import Network
from support.tun_link import TunLink

from ring_keras import _native

NBYTES = 1 << 20


@contextlib.contextmanager
def tun_link(network: Network, **options: Any) -> Iterator[TunLink]:
    link = TunLink(network, **options)
    try:
        yield link
    finally:
        link.close()


def reduce() -> float:
    rank, _ = join()
    data = np.full(NBYTES // 4, rank + 1, np.float32)
    return float(_native.allreduce(data, "sum", "data").max())


def fail_to_join() -> str:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        join()
    return str(caught.value)


def interfaces(*names: str) -> dict[str, str]:
    return {"RING_KERAS_INTERFACES": ",".join(names)}


def test_the_fastest_network_is_taken(make_hosts: Any) -> None:
    network = make_hosts(Network(2))
    with tun_link(network) as link:
        assert run_on(network, reduce, [0, 1]) == [3.0, 3.0]
        assert link.carried_nbytes > NBYTES
        assert network.sent_nbytes(0) < NBYTES / 4


@pytest.mark.slow
def test_a_network_that_is_dead_is_not(make_hosts: Any) -> None:
    network = make_hosts(Network(2))
    with tun_link(network, alive=False):
        assert run_on(network, reduce, [0, 1]) == [3.0, 3.0]
        assert network.sent_nbytes(0) > NBYTES / 2


@pytest.mark.parametrize("device", ["docker0", "pods0"])
def test_nor_one_that_each_host_has_for_itself(make_hosts: Any, device: str) -> None:
    network = make_hosts(Network(2))
    addresses = ("172.17.0.1", "172.17.0.1")
    with tun_link(network, device=device, addresses=addresses):
        assert run_on(network, reduce, [0, 1]) == [3.0, 3.0]
        assert network.sent_nbytes(0) > NBYTES / 2


def test_a_named_interface_is_taken(make_hosts: Any) -> None:
    network = make_hosts(Network(2))
    with tun_link(network) as link:
        results = run_on(network, reduce, [0, 1], more_env=interfaces("eth0"))
        assert results == [3.0, 3.0]
        assert link.carried_nbytes < NBYTES / 4
        assert network.sent_nbytes(0) > NBYTES / 2


def test_several_named_interfaces_share_the_load(make_hosts: Any) -> None:
    network = make_hosts(Network(2))
    # A name that no host has does no harm beside others.
    named = interfaces("eth0", "fast0", "ib0")
    with tun_link(network) as link:
        assert run_on(network, reduce, [0, 1], more_env=named) == [3.0, 3.0]
        assert link.carried_nbytes > NBYTES / 8
        assert network.sent_nbytes(0) > NBYTES / 8


def test_an_interface_that_does_not_exist(make_hosts: Any) -> None:
    network = make_hosts(Network(2))

    errors = run_on(network, fail_to_join, [0, 1], more_env=interfaces("eth7"))

    for host, error in enumerate(errors):
        assert (
            "RING_KERAS_INTERFACES: this host has no network interface eth7 that is up "
            f"and that other hosts could reach. It has {network.addresses[host]} on "
            "eth0"
        ) in error or "its init() failed: RING_KERAS_INTERFACES" in error
    assert any(f"It has {network.addresses[0]} on eth0" in error for error in errors)


@pytest.mark.slow
def test_no_common_network_names_both_hosts_addresses(make_hosts: Any) -> None:
    network = make_hosts(Network(3))
    # Each still reaches the store, on host 0.
    for command in network.cutting(1, 2):
        subprocess.run(command, check=True)

    errors = run_on(network, fail_to_join, [1, 2])

    assert errors[0] == errors[1]
    assert (
        "host host2 (10.223.7.3 on eth0) did not reach any address of host host1: "
        "10.223.7.2 on eth0 ("
    ) in errors[0]


def test_hosts_with_ipv6_only(make_hosts: Any) -> None:
    network = make_hosts(Network(2, ipv6=True))
    assert run_on(network, reduce, [0, 1]) == [3.0, 3.0]
    assert network.sent_nbytes(0) > NBYTES / 2


def send_for_longer_than_the_timeout() -> float:
    rank, _ = join()
    data = np.full(3 * NBYTES // 4, rank + 1, np.float32)
    return float(_native.broadcast(data, 0, "state").max())


@pytest.mark.slow
def test_what_moves_slowly_is_not_given_up(make_hosts: Any) -> None:
    network = make_hosts(Network(2))
    # That is 6 s for 3 MiB. The kernel takes as many of the sender as it has room
    # for, and then none until a third of those are gone.
    room = "net.ipv4.tcp_wmem=4096 2097152 2097152"
    add = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
    limit = ["rate", "4mbit", "burst", "32kb", "latency", "200ms"]
    for host in range(2):
        if subprocess.run([*network.command(host), *add, *limit]).returncode != 0:
            pytest.skip("this kernel slows no networks down")
        subprocess.run(network.command(host, "sysctl", "-w", room), check=True)

    env = {"RING_KERAS_COLLECTIVE_TIMEOUT_S": "1", "RING_KERAS_TCP_STREAMS": "1"}
    assert run_on(network, send_for_longer_than_the_timeout, [0, 1], env) == [1.0, 1.0]


def with_file(file: str, stand_in: Path) -> list[str]:
    """What runs a command on a host that has another file in that place."""
    if subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("this user may make no mount namespaces")
    script = f'mount --bind {stand_in} {file} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@pytest.fixture
def two_addresses(tmp_path: Path) -> list[str]:
    """What runs a command on a host that knows two addresses of `twohomed`."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.0.5 twohomed\n127.0.0.6 twohomed\n")
    return with_file("/etc/hosts", hosts)


def join_by_name() -> float:
    port = int(os.environ["RING_KERAS_STORE_ADDRESS"].rpartition(":")[2])
    os.environ["RING_KERAS_STORE_ADDRESS"] = f"twohomed:{port}"
    sockets = [socket.socket() for _ in range(5)]
    if os.environ["RING_KERAS_RANK"] == "0":
        # The kernel drops what else comes to one whose queue is full.
        silent = sockets.pop()
        silent.bind(("127.0.0.5", port))
        silent.listen(0)
        for client in sockets:
            client.setblocking(False)
            client.connect_ex(("127.0.0.5", port))
    return reduce()


def test_of_a_stores_addresses_one_may_not_answer(two_addresses: list[str]) -> None:
    totals = run_ranks(
        join_by_name,
        2,
        env=WITHOUT_TENSORFLOW | {"RING_KERAS_INIT_TIMEOUT_S": "20"},
        bind_address="127.0.0.6",
        command_prefix=[two_addresses] * 2,
    )
    assert totals == [3.0, 3.0]


@pytest.fixture
def silent_name_server(tmp_path: Path) -> Iterator[list[str]]:
    """What runs a command on a host whose name server never answers."""
    settings = tmp_path / "resolv.conf"
    settings.write_text("nameserver 127.0.0.7\noptions timeout:30 attempts:5\n")
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        try:
            server.bind(("127.0.0.7", 53))
        except OSError as error:
            pytest.skip(f"this user may be no name server: {error}")
        yield with_file("/etc/resolv.conf", settings)


def look_up_and_fail(is_interrupted: bool) -> str:
    port = os.environ["RING_KERAS_STORE_ADDRESS"].rpartition(":")[2]
    os.environ["RING_KERAS_STORE_ADDRESS"] = f"launcher.example:{port}"
    if is_interrupted:
        signal.setitimer(signal.ITIMER_REAL, 1)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            join()
        return ""
    return fail_to_join()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_name_that_nobody_resolves_holds_nobody_up(
    silent_name_server: list[str], is_interrupted: bool
) -> None:
    errors = run_ranks(
        look_up_and_fail,
        2,
        args=(is_interrupted,),
        env=WITHOUT_TENSORFLOW
        | {"RING_KERAS_INIT_TIMEOUT_S": "60" if is_interrupted else "2"},
        command_prefix=[silent_name_server] * 2,
        timeout_s=30,
    )
    said = "" if is_interrupted else "cannot resolve 'launcher.example': no name server"
    assert all(said in error for error in errors)
