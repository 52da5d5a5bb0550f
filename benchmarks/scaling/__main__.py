"""Prints everything: fit, errors, growth, and Horovod's published figures.

    python -m benchmarks.scaling

What it predicts from is `measurements.json`; `README.md` explains all of it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from benchmarks.scaling.fit import Machine, Point, fit
from benchmarks.scaling.measure import load
from benchmarks.scaling.models import horovod_models
from benchmarks.scaling.prediction import Cluster, best_allreduce, predict_step
from benchmarks.scaling.step import Model

_BUCKET_BYTES = 4 << 20
_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

# Horovod's: 128 servers with 4 P100 each and 25 Gbit/s. Its efficiencies are those
# of its README and of arXiv:1802.05799.
_PER_HOST = 4
_LINK = 25e9 / 8
_HOROVOD = {"ResNet101": 0.90, "InceptionV3": 0.90, "VGG16": 0.68}
# Assumed: a message between two machines takes this much longer than between two
# namespaces, and PCIe 3.0 x16 copies so fast.
_EXTRA_TRIP_S = 20e-6
_PCIE = 10e9


def main() -> int:
    """Prints all tables."""
    points, message_s = load()
    machine = fit(points, message_s)
    _print_fit(machine, points)
    _print_errors(machine, points)
    cluster = Cluster(_with_real_network(machine), _PER_HOST, _LINK, _PCIE)
    _print_collectives(cluster)
    models = horovod_models()
    _print_growth(cluster, models)
    _print_horovod(cluster, models)
    return 0


def _print_fit(machine: Machine, points: Sequence[Point]) -> None:
    print(f"# Fitted to {len(points)} measurements\n")
    for name, value, unit in (
        ("alpha: a trip", machine.trip_s * 1e6, "us"),
        ("a message's own work (measured)", machine.message_s * 1e6, "us"),
        ("  more for a rank that shares the core", machine.message_turn_s * 1e6, "us"),
        ("beta: link's time / nominal", machine.wire_excess, ""),
        ("gamma: a byte through TCP", machine.copied_s * 1e9, "ns"),
        ("a wait on one host", machine.sync_s * 1e6, "us"),
        ("  more for a rank that shares the core", machine.sync_turn_s * 1e6, "us"),
        ("a byte of shared memory, in cache", machine.near_s * 1e9, "ns"),
        ("  out of cache", machine.far_s * 1e9, "ns"),
    ):
        print(f"{name:<40} {value:10.4g} {unit}")


def _print_errors(machine: Machine, points: Sequence[Point]) -> None:
    print("\n# Predicted and measured, ms\n")
    print(
        f"{'algorithm':<13} {'hosts':>5} {'ranks':>5} {'link':>9} {'bytes':>10} "
        f"{'measured':>10} {'predicted':>10} {'error':>7}"
    )
    errors: dict[tuple[str, int], list[float]] = {}
    for point in points:
        predicted_s = machine.time_s(
            point.cost, point.link_bytes_per_s, point.ranks_per_core
        )
        error = predicted_s / point.time_s - 1
        errors.setdefault((point.algorithm, point.ranks), []).append(abs(error))
        link = f"{point.link_bytes_per_s * 8e-6:.0f} Mbit"
        link = link if point.link_bytes_per_s else "-"
        print(
            f"{point.algorithm:<13} {point.hosts:>5} {point.ranks:>5} {link:>9} "
            f"{point.nbytes:>10} {point.time_s * 1e3:>10.3f} "
            f"{predicted_s * 1e3:>10.3f} {error:>+7.0%}"
        )
    print("\nmean absolute error (greatest):")
    for (algorithm, ranks), found in sorted(errors.items()):
        mean = sum(found) / len(found)
        print(f"  {algorithm:<13} {ranks:>3} ranks: {mean:.0%} ({max(found):.0%})")


def _with_real_network(machine: Machine) -> Machine:
    return dataclasses.replace(machine, trip_s=machine.trip_s + _EXTRA_TRIP_S)


def _print_collectives(cluster: Cluster) -> None:
    print(
        f"\n# Predicted allreduce, ms and algorithm: {cluster.per_host} ranks a host, "
        f"{cluster.link_bytes_per_s * 8e-9:.0f} Gbit/s\n"
    )
    sizes = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "4 MiB": 4 << 20, "64 MiB": 64 << 20}
    print(f"{'ranks':>5}" + "".join(f"{name:>22}" for name in sizes))
    for ranks in _RANKS:
        cells = []
        for nbytes in sizes.values():
            name, time_s = best_allreduce(cluster, ranks, nbytes)
            cells.append(f"{time_s * 1e3:>10.3f} {name:<11}")
        print(f"{ranks:>5}" + "".join(cells))


def _print_growth(cluster: Cluster, models: Sequence[Model]) -> None:
    print(
        f"\n# Predicted step, ms (exposed communication), and scaling efficiency; "
        f"buckets of {_BUCKET_BYTES >> 20} MiB\n"
    )
    print(f"{'ranks':>5}" + "".join(f"{model.name:>26}" for model in models))
    alone = "".join(f"{model.alone_s * 1e3:>14.0f} {'':<11}" for model in models)
    print(f"{1:>5}{alone}")
    for ranks in _RANKS:
        cells = []
        for model in models:
            step = predict_step(cluster, model, ranks, _BUCKET_BYTES)
            cells.append(
                f"{step.step_s * 1e3:>9.0f} ({step.exposed_s * 1e3:>5.0f}) "
                f"{model.alone_s / step.step_s:>5.0%}   "
            )
        print(f"{ranks:>5}" + "".join(cells))


def _print_horovod(cluster: Cluster, models: Sequence[Model]) -> None:
    print("\n# 512 ranks beside Horovod's published figures, same link speed\n")
    print(
        f"{'model':<12} {'gradients':>10} {'buckets':>8} {'communication':>14} "
        f"{'exposed':>9} {'ours, predicted':>16} {'Horovod':>8}"
    )
    for model in models:
        step = predict_step(cluster, model, 512, _BUCKET_BYTES)
        print(
            f"{model.name:<12} {model.nbytes / 1e6:>7.0f} MB {step.buckets:>8} "
            f"{step.communication_s * 1e3:>11.0f} ms {step.exposed_s * 1e3:>6.0f} ms "
            f"{model.alone_s / step.step_s:>16.0%} {_HOROVOD[model.name]:>8.0%}"
        )


if __name__ == "__main__":
    sys.exit(main())
