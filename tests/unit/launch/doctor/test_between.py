"""What the doctor makes of what hosts have said and measured."""

from __future__ import annotations

import pytest

from ring_keras.launch.doctor.between import clocks, networks, versions
from ring_keras.launch.doctor.between.networks import Listener, Trial
from ring_keras.launch.doctor.finding import Between, Finding, State

FACTS = {
    "ring_keras": "1.0",
    "tensorflow": "2.21.0",
    "torch": "",
    "jax": "",
    "keras": "3.15.0",
    "numpy": "2.1.0",
    "python": "3.11.7",
    "libc": "glibc 2.36",
    "libraries": "0123",
}


def place(
    address: str = "10.0.0.2", mtu: int = 1500, bits_per_s: float = 0
) -> Listener:
    return Listener(address, 4711, "eth0", mtu, bits_per_s)


def by_host(found: list[Between]) -> dict[str, Finding]:
    """By the host that is reached."""
    return {some.hosts[-1]: some.finding for some in found}


def trial(gb_per_s: float, there: Listener | None = None, far_s: float = 1e-5) -> Trial:
    measured = {
        "bytes_per_s": gb_per_s * 1e9,
        "round_trip_s": far_s,
        "mtu_bytes": 1500.0,
    }
    return Trial(there or place(), measured)


def test_the_same_versions() -> None:
    (found,) = versions.compare({"a": FACTS, "b": FACTS}, "python3", "tensorflow")

    assert found.finding.state is State.OK
    assert "Keras 3.15.0" in found.finding.found


@pytest.mark.parametrize(
    ("name", "state", "fix"),
    [
        ("keras", State.WARNING, "ssh c /py -m pip install keras==3.15.0"),
        ("ring_keras", State.FAILURE, "ring-keras==1.0"),
        ("libraries", State.WARNING, "--force-reinstall --no-deps ring-keras==1.0"),
        ("python", State.WARNING, "--remote-python"),
    ],
)
def test_another_version_on_one(name: str, state: State, fix: str) -> None:
    other = {**FACTS, name: "0.9"}

    (found,) = versions.compare(
        {"a": FACTS, "b": FACTS, "c": other}, "/py", "tensorflow"
    )

    assert found.finding.state is state
    assert "c: 0.9" in found.finding.found
    assert fix in found.finding.fix


def test_a_back_end_that_nobody_uses() -> None:
    other = {**FACTS, "torch": "2.13.0"}

    (found,) = versions.compare({"a": FACTS, "b": other}, "/py", "tensorflow")

    assert found.finding.state is State.OK
    assert "PyTorch" not in found.finding.found


def test_one_in_use_that_the_first_host_does_not_have() -> None:
    other = {**FACTS, "torch": "2.13.0"}

    (found,) = versions.compare({"a": FACTS, "b": other}, "/py", "torch")

    assert found.finding.state is State.WARNING
    assert "a: none, b: 2.13.0" in found.finding.found
    assert not found.finding.fix


def test_a_clock_that_may_be_right() -> None:
    """The round trip was longer than what it seems to differ by."""
    offsets = {"a": clocks.Offset(0.0, 0.001), "b": clocks.Offset(0.3, 0.25)}

    (found,) = clocks.compare(offsets)

    assert found.finding.state is State.OK


def test_a_clock_that_is_behind() -> None:
    offsets = {"a": clocks.Offset(0.2, 0.001), "b": clocks.Offset(-1.0, 0.001)}

    (found,) = clocks.compare(offsets)

    assert found.finding.state is State.WARNING
    assert found.finding.measured["ahead_s"] == pytest.approx(-1.2)
    assert "b is 1.200 s behind a" in found.finding.found


@pytest.mark.parametrize("count", range(2, 9))
def test_rounds_measure_every_neighbour_once_and_no_host_twice(count: int) -> None:
    hosts = [f"h{number}" for number in range(count)]

    rounds = networks.rounds(hosts)

    for pairs in rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    ring = {frozenset((hosts[i], hosts[(i + 1) % count])) for i in range(count)}
    assert met == ring
    assert len(rounds) <= 3


def test_an_address_that_only_some_reach() -> None:
    inner, outer = place("10.0.0.2"), place("192.168.0.2")
    places = {"a": [place("10.0.0.1")], "b": [inner, outer], "c": [place("10.0.0.3")]}
    reached = {
        (one, other): {there.address for there in places[other]}
        for one in places
        for other in places
        if one != other
    }
    reached["c", "b"] = {"192.168.0.2"}

    found = {
        some.hosts[-1]: some.finding for some in networks.judge_reach(places, reached)
    }

    assert all(finding.state is State.OK for finding in found.values())
    assert networks.common(places, reached)["b"] == [outer]
    assert "not all at 10.0.0.2 on eth0" in found["b"].found

    reached["a", "b"] = {"10.0.0.2"}
    found = {
        some.hosts[-1]: some.finding for some in networks.judge_reach(places, reached)
    }
    assert found["b"].state is State.FAILURE
    assert "a reaches 10.0.0.2; c reaches 192.168.0.2" in found["b"].found


def test_what_an_allreduce_can_take_from_the_slowest_way() -> None:
    trials = {
        ("a", "b"): [trial(2.0)],
        ("b", "a"): [trial(2.0)],
        ("b", "c"): [trial(1.6)],
        ("c", "b"): [trial(2.0)],
    }

    *_, last = networks.judge_speed(trials)

    assert last.finding.check == "expected allreduce"
    # 2 (n - 1) / n of a tensor, for three hosts 4/3.
    assert last.finding.measured["allreduce_bytes_per_s"] == pytest.approx(1.2e9)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (trial(0.05), "0.1 GB/s or more"),
        (trial(0.9), "2.00 GB/s, as elsewhere"),
        (trial(1.5, place(bits_per_s=100e9)), "more than half of the 100 Gb/s"),
        (trial(2.0, far_s=0.02), "round trips below 1 ms"),
    ],
)
def test_a_slow_way(bad: Trial, word: str) -> None:
    found = networks.judge_speed({("a", "b"): [trial(2.0)], ("b", "a"): [bad]})

    states = {some.hosts: some.finding for some in found[:2]}
    assert states["a", "b"].state is State.OK
    assert states["b", "a"].state is State.WARNING
    assert word in states["b", "a"].expected


def test_a_way_on_which_large_packets_are_lost() -> None:
    lost = Trial(place(), None, "TimeoutError: timed out")

    found = networks.judge_speed({("a", "b"): [lost], ("b", "a"): [trial(1.0)]})

    assert [some.finding.state for some in found] == [State.FAILURE, State.OK]
    assert found[0].finding.fix == "ssh b sudo ip link set dev eth0 mtu 1400"


def test_interfaces_that_take_packets_of_different_lengths() -> None:
    trials = {
        ("a", "b"): [trial(1.0, place(mtu=1500))],
        ("b", "a"): [trial(1.0, place(mtu=9000))],
    }

    (found,) = (
        some for some in networks.judge_speed(trials) if some.finding.check == "MTU"
    )

    assert found.finding.state is State.WARNING
    assert found.finding.fix == "ssh a sudo ip link set dev eth0 mtu 1500"
