"""Which of their addresses hosts reach each other at, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ring_keras.launch.doctor.finding import Between, Finding, State

__all__ = [
    "Listener",
    "Trial",
    "common",
    "judge_reach",
    "judge_speed",
    "one_of_each_interface",
    "rounds",
]

_GB = 10**9
_GRADIENTS_NBYTES = 10**8
# A gigabit network: 100 MB of gradients take about a second.
_SLOW_BYTES_PER_S = 0.1 * _GB
_FAR_S = 1e-3
# Passes every tunnel that is in use.
_SAFE_MTU = 1400


@dataclass(frozen=True)
class Listener:
    """Where a host listens.

    Attributes:
        address: Of IPv4 or IPv6.
        port: A free one.
        interface: Its name.
        mtu: The largest packet that it takes; 0: unknown.
        bits_per_s: What the interface says of itself; 0: nothing.
    """

    address: str
    port: int
    interface: str
    mtu: int
    bits_per_s: float

    def __str__(self) -> str:
        return f"{self.address} on {self.interface}" if self.interface else self.address


@dataclass(frozen=True)
class Trial:
    """One direction between two hosts.

    Attributes:
        place: Of the host that received.
        measured: As `Speed.measured` gives it; None if it failed.
        problem: Why.
    """

    place: Listener
    measured: Mapping[str, float] | None
    problem: str = ""


def common(
    places: Mapping[str, Sequence[Listener]],
    reached: Mapping[tuple[str, str], set[str]],
) -> dict[str, list[Listener]]:
    """Of each host, where all others reach it.

    Args:
        places: Where each listens.
        reached: For one host and another, the addresses of that which it reached.
    """
    return {
        host: [
            place
            for place in places[host]
            if all(
                place.address in reached[other, host]
                for other in places
                if other != host
            )
        ]
        for host in places
    }


def one_of_each_interface(places: Sequence[Listener]) -> list[Listener]:
    """The first address of each, which says how fast its others are."""
    return list({place.interface: place for place in reversed(places)}.values())[::-1]


def judge_reach(
    places: Mapping[str, Sequence[Listener]],
    reached: Mapping[tuple[str, str], set[str]],
) -> list[Between]:
    """Whether each host has an address that all others reach."""
    found = []
    for host, there in common(places, reached).items():
        others = [other for other in places if other != host]
        if there:
            missed = [str(place) for place in places[host] if place not in there]
            text = f"all reach {host} at {', '.join(map(str, there))}"
            if missed:
                text += f"; not all at {', '.join(missed)}"
            finding = Finding("reachable", State.OK, text)
        else:
            each = "; ".join(
                f"{other} reaches {', '.join(sorted(reached[other, host])) or 'none'}"
                for other in others
            )
            tried = ", ".join(map(str, places[host])) or "no address but loopback"
            finding = Finding(
                "reachable",
                State.FAILURE,
                f"no address of {host} is reached by all ({tried}): {each}",
                expected="connections from all other hosts to any free port of it",
                fix=f"ssh {host} sudo nft list ruleset",
            )
        found.append(Between((*others, host), finding))
    return found


def rounds(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Neighbours on the ring of all hosts, in rounds in which no host comes twice."""
    count = len(hosts)
    pairs = [(hosts[i], hosts[(i + 1) % count]) for i in range(count)]
    if count == 2:
        return [pairs[:1]]
    even = count - count % 2
    found = [pairs[0:even:2], pairs[1:even:2], pairs[even:]]
    return [some for some in found if some]


def judge_speed(trials: Mapping[tuple[str, str], Sequence[Trial]]) -> list[Between]:
    """What was measured, and what an allreduce among all these hosts can take from it.

    Args:
        trials: For one host and another, what the one sent to the other.
    """
    rates = {
        pair: max(
            (trial.measured["bytes_per_s"] for trial in some if trial.measured),
            default=0.0,
        )
        for pair, some in trials.items()
    }
    best = max(rates.values(), default=0.0)
    found = [
        Between(pair, _judge(pair, trial, best))
        for pair, some in trials.items()
        for trial in some
    ]
    found += _mtus(trials)
    if rates and min(rates.values()) > 0:
        hosts = tuple(dict.fromkeys(host for pair in trials for host in pair))
        found.append(Between(hosts, _allreduce(len(hosts), min(rates.values()))))
    return found


def _judge(pair: tuple[str, str], trial: Trial, best: float) -> Finding:
    sender, receiver = pair
    place = trial.place
    title = f"{sender} to {receiver}"
    if trial.measured is None:
        return Finding(
            "bandwidth",
            State.FAILURE,
            f"{title} at {place}: connections are made, and then {trial.problem}",
            expected="data of any length: do switches take packets as long?",
            fix=_set_mtu(receiver, place, _SAFE_MTU),
        )
    rate, far_s = trial.measured["bytes_per_s"], trial.measured["round_trip_s"]
    text = (
        f"{title} at {place}: {rate / _GB:.2f} GB/s, round trip {far_s * 1e6:.0f} us, "
        f"packets of {trial.measured['mtu_bytes']:.0f} B"
    )
    look = f"ssh {receiver} ethtool {place.interface}"
    state, expected, fix = State.OK, "", ""
    if place.bits_per_s and 8 * rate < place.bits_per_s / 2:
        state, fix = State.WARNING, look
        expected = f"more than half of the {place.bits_per_s / 1e9:g} Gb/s it has"
    elif rate < _SLOW_BYTES_PER_S:
        state, fix = State.WARNING, "ringrun --network-interface NAME ..."
        expected = (
            f"{_SLOW_BYTES_PER_S / _GB:g} GB/s or more: is there another network?"
        )
    elif rate < best / 2:
        state, fix = State.WARNING, look
        expected = f"{best / _GB:.2f} GB/s, as elsewhere: the slowest decides for all"
    elif far_s > _FAR_S:
        state, fix = State.WARNING, f"tracepath {place.address}"
        expected = f"round trips below {_FAR_S * 1000:g} ms, as within one site"
    return Finding("bandwidth", state, text, expected, fix, trial.measured)


def _mtus(trials: Mapping[tuple[str, str], Sequence[Trial]]) -> list[Between]:
    """Interfaces of one network that take packets of different lengths."""
    found = []
    for (sender, receiver), some in trials.items():
        back = trials.get((receiver, sender), ())
        for trial, answer in zip(some, back, strict=False):
            mine, theirs = answer.place, trial.place
            if sender < receiver and mine.mtu != theirs.mtu and mine.mtu and theirs.mtu:
                small = min(mine.mtu, theirs.mtu)
                host, place = (
                    (receiver, theirs) if theirs.mtu > small else (sender, mine)
                )
                finding = Finding(
                    "MTU",
                    State.WARNING,
                    f"{sender} takes packets of {mine.mtu} B on {mine.interface}, "
                    f"{receiver} of {theirs.mtu} B on {theirs.interface}",
                    expected="the same on both: what is longer may get lost",
                    fix=_set_mtu(host, place, small),
                )
                found.append(Between((sender, receiver), finding))
    return found


def _allreduce(count: int, slowest: float) -> Finding:
    """Data cross between hosts once per host, whatever number of ranks it has."""
    expected = slowest * count / (2 * (count - 1))
    milliseconds = 1000 * _GRADIENTS_NBYTES / expected
    return Finding(
        "expected allreduce",
        State.OK,
        f"{count} hosts send 2(n-1)/n of a tensor each, so the slowest way, "
        f"{slowest / _GB:.2f} GB/s, allows {expected / _GB:.2f} GB/s at best: 100 MB "
        f"of gradients in {milliseconds:.0f} ms",
        measured={"slowest_bytes_per_s": slowest, "allreduce_bytes_per_s": expected},
    )


def _set_mtu(host: str, place: Listener, mtu: int) -> str:
    return f"ssh {host} sudo ip link set dev {place.interface} mtu {mtu}"
