"""Measures the allreduces that the model is fitted to and checked against.

    python -m benchmarks.scaling.measure [PART ...]

runs `ring_keras.benchmark` on ranks in network namespaces of this machine and puts
the times into `measurements.json` beside this file. Needs root. Each part takes a
minute or two and replaces what the file has of it; without arguments, all do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.scaling.fit import Point
from benchmarks.scaling.launch import Network, run_on_hosts
from benchmarks.scaling.measurements import (
    FILE,
    MESSAGE,
    REPLAYED,
    STEPS,
    TURNS,
    MeasuredStep,
)
from benchmarks.scaling.message import message_s
from benchmarks.scaling.step import ready_buckets

_HUGE = str(1 << 40)
_ALGORITHMS = {
    "direct": {"RING_KERAS_DIRECT_MAX_BYTES": _HUGE},
    "doubling": {
        "RING_KERAS_DIRECT_MAX_BYTES": "0",
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": _HUGE,
    },
    "parts": {
        "RING_KERAS_DIRECT_MAX_BYTES": "0",
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": _HUGE,
    },
    "halving": {
        "RING_KERAS_DIRECT_MAX_BYTES": "0",
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": _HUGE,
    },
    "trees": {
        "RING_KERAS_DIRECT_MAX_BYTES": "0",
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": "0",
        "RING_KERAS_TREES_MAX_BYTES": _HUGE,
    },
    "ring": {
        "RING_KERAS_DIRECT_MAX_BYTES": "0",
        "RING_KERAS_RECURSIVE_DOUBLING_MAX_BYTES": "0",
        "RING_KERAS_PARTS_MAX_BYTES": "0",
        "RING_KERAS_HALVING_MAX_BYTES": "0",
    },
    "hierarchical": {"RING_KERAS_DIRECT_MAX_BYTES": "0"},
    "shared_flat": {"RING_KERAS_SHARED_FLAT_MAX_BYTES": _HUGE},
    "shared_parts": {"RING_KERAS_SHARED_FLAT_MAX_BYTES": "0"},
}


_REPLAYED_BUCKETS = (1 << 20, 4 << 20)
_REPLAYED_HOSTS = (2, 4, 8, 16)
_REPLAYED_MBIT = 200
_COMPARED = ("doubling", "parts", "halving", "trees", "ring")
_COMPARED_HOSTS = (2, 4, 8, 16)
_COMPARED_SIZES = (16 << 10, 128 << 10, 1 << 20)
_COMPARED_ROUNDS = 7


@dataclass(frozen=True)
class Part:
    """Runs of one kind.

    Attributes:
        layouts: Pairs of hosts, and ranks on each.
        link_mbit: Of each host; 0 for no limit.
        max_bytes: The largest size, by algorithm.
    """

    layouts: tuple[tuple[int, int], ...]
    link_mbit: int
    max_bytes: dict[str, str]


_UP_TO = {"direct": "32K", "doubling": "256K", "parts": "2M", "ring": "16M"}
_PARTS = {
    "one-host-2": Part(((1, 2),), 0, {"shared_flat": "64M"}),
    "one-host-4": Part(((1, 4),), 0, {"shared_flat": "1M", "shared_parts": "64M"}),
    "no-limit": Part(((2, 1),), 0, {**_UP_TO, "ring": "64M"}),
    "1gbit": Part(((2, 1), (4, 1)), 1000, _UP_TO),
    "200mbit": Part(((2, 1), (4, 1), (8, 1)), 200, _UP_TO),
    "200mbit-16": Part(((16, 1),), 200, _UP_TO),
    "hierarchical": Part(((2, 2), (4, 2)), 200, {"hierarchical": "16M"}),
}


def main(names: list[str]) -> int:
    """Measures the named parts."""
    known = [MESSAGE, *_PARTS, STEPS, TURNS]
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"no part {sorted(unknown)}; there are {', '.join(known)}")
    for name in names or known:
        if name == MESSAGE:
            measured: list[dict[str, Any]] = [{"message_s": message_s()}]
        elif name == STEPS:
            measured = [asdict(step) for step in _replay()]
        elif name == TURNS:
            measured = [asdict(point) for point in _in_turn()]
        else:
            measured = [asdict(point) for point in _measure(_PARTS[name])]
        content = json.loads(FILE.read_text()) if FILE.exists() else {}
        content[name] = measured
        ordered = {part: content[part] for part in known if part in content}
        FILE.write_text(_compact(ordered))
    return 0


def _measure(part: Part) -> list[Point]:
    points = []
    most_hosts = max(hosts for hosts, _ in part.layouts)
    rate = f"{part.link_mbit}mbit" if part.link_mbit else None
    # bbr paces even what no link limits.
    with Network(most_hosts, rate=rate, congestion_control="reno") as network:
        for hosts, per_host in part.layouts:
            for algorithm, max_bytes in part.max_bytes.items():
                rows = _run(network, hosts, per_host, algorithm, max_bytes)
                for row in rows:
                    assert row["wrong"] == 0, row
                    points.append(
                        Point(
                            algorithm=algorithm,
                            hosts=hosts,
                            per_host=per_host,
                            cores=len(os.sched_getaffinity(0)),
                            link_bytes_per_s=part.link_mbit * 1e6 / 8,
                            nbytes=row["nbytes"],
                            time_s=row["timing"]["median_s"],
                        )
                    )
                print(
                    f"{hosts} x {per_host} {algorithm}: {len(rows)} sizes", flush=True
                )
    return points


def _replay() -> list[MeasuredStep]:
    steps = []
    rate = f"{_REPLAYED_MBIT}mbit"
    hosts_at_most = max(_REPLAYED_HOSTS)
    with Network(hosts_at_most, rate=rate, congestion_control="reno") as network:
        for hosts in _REPLAYED_HOSTS:
            for size in _REPLAYED_BUCKETS:
                buckets = ready_buckets(REPLAYED, size)
                task = {"buckets": buckets, "alone_s": REPLAYED.alone_s}
                with tempfile.TemporaryDirectory() as directory:
                    file = Path(directory, "step_s")
                    run_on_hosts(
                        network,
                        hosts,
                        1,
                        [
                            *("-m", "benchmarks.scaling.replay"),
                            *(json.dumps(task), str(file)),
                        ],
                        _ALGORITHMS["ring"],
                        timeout_s=100,
                    )
                    step_s = json.loads(file.read_text())
                steps.append(
                    MeasuredStep(
                        hosts=hosts,
                        link_bytes_per_s=_REPLAYED_MBIT * 1e6 / 8,
                        cores=len(os.sched_getaffinity(0)),
                        bucket_size_bytes=size,
                        step_s=step_s,
                    )
                )
                print(
                    f"steps on {hosts}, buckets of {size}: {step_s:.3f} s", flush=True
                )
    return steps


def _in_turn() -> list[Point]:
    points = []
    thresholds = {
        name: {
            variable.removeprefix("RING_KERAS_").lower(): int(value)
            for variable, value in _ALGORITHMS[name].items()
        }
        for name in _COMPARED
    }
    rate = f"{_REPLAYED_MBIT}mbit"
    most_hosts = max(_COMPARED_HOSTS)
    with Network(most_hosts, rate=rate, congestion_control="reno") as network:
        for hosts in _COMPARED_HOSTS:
            task = {
                "thresholds": thresholds,
                "sizes": _COMPARED_SIZES,
                "rounds": _COMPARED_ROUNDS,
            }
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory, "rows.json")
                arguments = [json.dumps(task), str(file)]
                run_on_hosts(
                    network,
                    hosts,
                    1,
                    ["-m", "benchmarks.scaling.in_one_job", *arguments],
                    {},
                    timeout_s=300,
                )
                rows = json.loads(file.read_text())
            points += [
                Point(
                    algorithm=row["algorithm"],
                    hosts=hosts,
                    per_host=1,
                    cores=len(os.sched_getaffinity(0)),
                    link_bytes_per_s=_REPLAYED_MBIT * 1e6 / 8,
                    nbytes=row["nbytes"],
                    time_s=row["median_s"],
                )
                for row in rows
            ]
            print(f"all in turn on {hosts} hosts", flush=True)
    return points


def _run(
    network: Network, hosts: int, per_host: int, algorithm: str, max_bytes: str
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "rows.json")
        run_on_hosts(
            network,
            hosts,
            per_host,
            [
                *("-m", "ring_keras.benchmark", "allreduce", "--json", str(file)),
                *("--min-bytes", "4", "--max-bytes", max_bytes, "--factor", "8"),
                *("--iterations", "5", "--warmup", "2"),
            ],
            _ALGORITHMS[algorithm],
            timeout_s=200,
        )
        rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
        return rows


def _compact(content: dict[str, list[dict[str, Any]]]) -> str:
    """JSON with one point a line."""
    parts = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(f"  {json.dumps(point)}" for point in points)
        + "\n]"
        for name, points in content.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
