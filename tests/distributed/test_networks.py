"""Which network ranks of several hosts take, as network namespaces."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.engine_only import join
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
