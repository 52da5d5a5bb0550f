"""A fit to times that a known machine would have had finds that machine."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.scaling.costs import Cost, names
from benchmarks.scaling.fit import Machine, Point, fit

MACHINE = Machine(
    trip_s=20e-6,
    message_s=5e-6,
    message_turn_s=200e-6,
    wire_excess=1.05,
    copied_s=0.5e-9,
    sync_s=0.2e-6,
    sync_turn_s=50e-6,
    near_s=0.01e-9,
    far_s=0.05e-9,
)
LINK = 25e6


def points() -> list[Point]:
    found = []
    for hosts, per_host, link in [
        *((1, 2, 0.0), (1, 4, 0.0), (2, 1, 0.0)),
        *((2, 1, LINK), (4, 1, LINK), (8, 1, LINK)),
    ]:
        for name in names(hosts, per_host):
            for nbytes in (4, 2048, 65536, 1 << 20, 16 << 20, 64 << 20):
                point = Point(name, hosts, per_host, 2, link, nbytes, 1.0)
                time_s = MACHINE.time_s(point.cost, link, point.ranks_per_core)
                found.append(dataclasses.replace(point, time_s=time_s))
    return found


def test_the_machine_is_found_again() -> None:
    found = fit(points(), MACHINE.message_s)

    # Not exactly: trips count besides the link's time.
    assert found.wire_excess == pytest.approx(MACHINE.wire_excess, rel=0.01)
    for field in dataclasses.fields(Machine):
        expected = getattr(MACHINE, field.name)
        assert getattr(found, field.name) == pytest.approx(expected, rel=0.05), field


def test_no_parameter_is_negative() -> None:
    # Each measurement is off, some far.
    wrong = [
        dataclasses.replace(point, time_s=point.time_s * (0.3 + index % 5))
        for index, point in enumerate(points())
    ]

    assert min(dataclasses.astuple(fit(wrong, MACHINE.message_s))) >= 0


def test_too_few_measurements_are_refused() -> None:
    across = [point for point in points() if point.hosts > 1]

    with pytest.raises(ValueError, match="must tell 7 parameters apart"):
        fit(across, MACHINE.message_s)
    with pytest.raises(ValueError, match="link's share needs"):
        fit([point for point in points() if point.hosts == 1], MACHINE.message_s)


def test_time_by_hand() -> None:
    cost = Cost(trips=2, messages=3, wire_bytes=25e6, copied_bytes=1e6)

    # The link decides, then the cores.
    assert MACHINE.time_s(cost, LINK) == pytest.approx(2 * 20e-6 + 1.05)
    assert MACHINE.time_s(cost, 0) == pytest.approx(2 * 20e-6 + 3 * 5e-6 + 0.5e-3)
    # Of four ranks on a core, three are in the way.
    assert MACHINE.time_s(cost, 0, 4) == pytest.approx(
        2 * 20e-6 + 4 * (3 * 5e-6 + 0.5e-3) + 3 * 3 * 200e-6
    )


def test_nothing_takes_no_time() -> None:
    assert MACHINE.time_s(Cost(), LINK, 8) == 0
