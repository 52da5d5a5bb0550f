"""Prints everything: fit, errors, growth, and Horovod's published figures.

    python -m benchmarks.scaling

What it predicts from is `measurements.json`; `README.md` explains all of it.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks.scaling import gathers
from benchmarks.scaling.costs import (
    Cost,
    announced,
    cost_of,
    hierarchical,
    hierarchical_in_16_bits,
    hierarchical_rings,
    posts,
    unposted,
)
from benchmarks.scaling.fit import Machine, Point, fit
from benchmarks.scaling.horovods_cluster import (
    HOROVODS_EFFICIENCIES,
    PER_HOST,
    horovods_cluster,
)
from benchmarks.scaling.measurements import REPLAYED, MeasuredStep, load
from benchmarks.scaling.models import bert_large, convolutional_models
from benchmarks.scaling.prediction import (
    Allreduce,
    Cluster,
    best_allreduce,
    predict_tuned_step,
)
from benchmarks.scaling.step import Model, Transfer, simulate

_RANKS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_STEPS_APART = (1, 100, 500, 1000)
_SPARSE_GBIT_PER_S = 25


def main() -> int:
    """Prints all tables."""
    measured = load()
    machine = fit(measured.points, measured.message_s)
    _print_fit(machine, measured.points)
    _print_errors(machine, measured.points)
    _print_steps(machine, measured.steps)
    _print_turns(machine, measured.turns)
    cluster = horovods_cluster(machine)
    _print_collectives(cluster)
    _print_share(cluster)
    by_name = convolutional_models()
    published = [by_name[name] for name in HOROVODS_EFFICIENCIES]
    _print_growth(cluster, published)
    _print_horovod(cluster, published)
    large = [by_name["ResNet50"], by_name["VGG16"], bert_large()]
    _print_many(cluster, large)
    _print_eights(cluster, large)
    _print_apart(cluster, large)
    _print_sparse(machine)
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
        wire_s = machine.wire_s(point.cost, point.link_bytes_per_s)
        decided = "the link" if wire_s > predicted_s / 2 else "the cores"
        errors.setdefault((decided, point.ranks), []).append(abs(error))
        link = f"{point.link_bytes_per_s * 8e-6:.0f} Mbit"
        link = link if point.link_bytes_per_s else "-"
        print(
            f"{point.algorithm:<13} {point.hosts:>5} {point.ranks:>5} {link:>9} "
            f"{point.nbytes:>10} {point.time_s * 1e3:>10.3f} "
            f"{predicted_s * 1e3:>10.3f} {error:>+7.0%}"
        )
    print("\nabsolute error: median and greatest, by what decides the prediction")
    for (decided, ranks), found in sorted(errors.items()):
        print(
            f"  {decided:<9} {ranks:>3} ranks: {statistics.median(found):>5.1%} "
            f"{max(found):>5.0%} of {len(found)}"
        )


def _print_steps(machine: Machine, steps: Sequence[MeasuredStep]) -> None:
    print(
        f"\n# Replayed training steps ({REPLAYED.alone_s:.1f} s without communication, "
        f"{REPLAYED.nbytes / 1e6:.0f} MB of gradients, ring), s\n"
    )
    print(
        f"{'ranks':>5} {'link':>9} {'buckets':>9} {'measured':>10} {'predicted':>10} "
        f"{'error':>7}"
    )
    for step in steps:

        def allreduce(nbytes: int, step: MeasuredStep = step) -> Transfer:
            cost = cost_of("ring", step.hosts, 1, nbytes)
            crowd = max(1.0, step.hosts / step.cores)
            # The replay calls one after the other: nothing else goes on meanwhile.
            return Transfer(machine.time_s(cost, step.link_bytes_per_s, crowd), 0)

        predicted_s = simulate(REPLAYED, step.bucket_size_bytes, allreduce).step_s
        print(
            f"{step.hosts:>5} {step.link_bytes_per_s * 8e-6:>4.0f} Mbit "
            f"{step.bucket_size_bytes >> 20:>5} MiB {step.step_s:>10.3f} "
            f"{predicted_s:>10.3f} {predicted_s / step.step_s - 1:>+7.1%}"
        )


def _print_turns(machine: Machine, points: Sequence[Point]) -> None:
    algorithms = list(dict.fromkeys(point.algorithm for point in points))
    print(
        "\n# All algorithms in turn in one job, measured (predicted), ms; the model is "
        "not fitted to these\n"
    )
    print(f"{'hosts':>5} {'bytes':>9}" + "".join(f"{name:>18}" for name in algorithms))
    for hosts, nbytes in dict.fromkeys((point.hosts, point.nbytes) for point in points):
        cells = []
        for point in points:
            if (point.hosts, point.nbytes) == (hosts, nbytes):
                predicted_s = machine.time_s(
                    point.cost, point.link_bytes_per_s, point.ranks_per_core
                )
                cells.append(f"{point.time_s * 1e3:.2f} ({predicted_s * 1e3:.2f})")
        print(f"{hosts:>5} {nbytes:>9}" + "".join(f"{cell:>18}" for cell in cells))


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
        "\n# Predicted step, ms (exposed communication, ms; size of buckets, MiB), and "
        "scaling efficiency\n"
    )
    print(f"{'ranks':>5}" + "".join(f"{model.name:>30}" for model in models))
    alone = "".join(f"{model.alone_s * 1e3:>11.0f}{'':<19}" for model in models)
    print(f"{1:>5}{alone}")
    for ranks in _RANKS:
        cells = []
        for model in models:
            size, step = predict_tuned_step(cluster, model, ranks)
            cells.append(
                f"{step.step_s * 1e3:>11.0f} ({step.exposed_s * 1e3:>5.0f};"
                f"{size >> 20:>4}) {model.alone_s / step.step_s:>5.0%}"
            )
        print(f"{ranks:>5}" + "".join(cells))


def _print_share(cluster: Cluster) -> None:
    """What an allreduce of a bucket consists of, where there are many hosts."""
    nbytes = 16 << 20
    print(
        f"\n# What an allreduce of {nbytes >> 20} MiB consists of, ms: link, and core "
        "(of which the posts), work side by side; trips do not\n"
    )
    print(f"{'ranks':>5} {'trips':>9} {'link':>9} {'core':>9} {'posts':>14}")
    machine = cluster.machine
    for ranks in _RANKS[2:]:
        cost = cost_of("hierarchical", ranks // PER_HOST, PER_HOST, nbytes)
        parts = (
            machine.waiting_s(cost),
            machine.wire_s(cost, cluster.link_bytes_per_s),
            machine.core_s(cost),
            machine.core_s(posts(ranks // PER_HOST, PER_HOST)),
        )
        widths = (9, 9, 9, 14)
        print(
            f"{ranks:>5} "
            + " ".join(
                f"{part * 1e3:>{width}.2f}"
                for part, width in zip(parts, widths, strict=True)
            )
        )


def _print_horovod(cluster: Cluster, models: Sequence[Model]) -> None:
    print("\n# 512 ranks beside Horovod's published figures, same link speed\n")
    print(
        f"{'model':<12} {'gradients':>10} {'buckets':>8} {'communication':>14} "
        f"{'exposed':>9} {'ours, predicted':>16} {'Horovod':>8}"
    )
    for model in models:
        _, step = predict_tuned_step(cluster, model, 512)
        print(
            f"{model.name:<12} {model.nbytes / 1e6:>7.0f} MB {step.buckets:>8} "
            f"{step.communication_s * 1e3:>11.0f} ms {step.exposed_s * 1e3:>6.0f} ms "
            f"{model.alone_s / step.step_s:>16.0%} "
            f"{HOROVODS_EFFICIENCIES[model.name]:>8.0%}"
        )


def _print_many(cluster: Cluster, models: Sequence[Model]) -> None:
    print(
        "\n# Scaling efficiency on many ranks (exposed communication, ms; size of "
        "buckets, MiB), by what lanes may run, by how they begin\n"
    )
    ways: dict[str, Allreduce] = {
        "rings alone": hierarchical_rings,
        "as picked": hierarchical,
        "no posts": unposted,
        "all announced": announced,
        "bf16 between hosts": hierarchical_in_16_bits,
    }
    _print_efficiencies(cluster, models, (512, 4096), ways)


def _print_eights(cluster: Cluster, models: Sequence[Model]) -> None:
    print(
        "\n# The same on hosts with 8 ranks each, by what goes between them, and how "
        "fast a host's link is\n"
    )
    for gbit_per_s in (25, 100):
        print(f"{gbit_per_s} Gbit/s")
        eights = dataclasses.replace(
            cluster, per_host=8, link_bytes_per_s=gbit_per_s * 1e9 / 8
        )
        ways: dict[str, Allreduce] = {
            "float32": hierarchical,
            "bf16": hierarchical_in_16_bits,
        }
        _print_efficiencies(eights, models, (8, 16, 32, 64), ways)


def _print_apart(cluster: Cluster, models: Sequence[Model]) -> None:
    """Ranks that meet every so many steps: nothing of a meeting is hidden."""
    print(
        "\n# Share of no communication: 512 ranks on hosts of 8 that meet every H "
        "steps\n"
    )
    print(f"{'model':<12} {'link':>10} {'meeting':>11}", end="")
    print("".join(f"{f'H = {steps}':>10}" for steps in _STEPS_APART))
    for model in models:
        for gbit_per_s in (0.1, 1, 10):
            eights = dataclasses.replace(
                cluster, per_host=8, link_bytes_per_s=gbit_per_s * 1e9 / 8
            )
            _, meeting_s = best_allreduce(eights, 512, model.nbytes)
            shares = (
                model.alone_s / (model.alone_s + meeting_s / steps)
                for steps in _STEPS_APART
            )
            print(
                f"{model.name:<12} {gbit_per_s:>3} Gbit/s {meeting_s:>9.2f} s"
                + "".join(f"{share:>10.1%}" for share in shares)
            )


def _print_sparse(machine: Machine) -> None:
    """The slices of one gradient and their indices, in two allgathers."""
    print(
        "\n# A sparse gradient, ms: ranks hear of each other's rows, then get them; "
        f"one rank a host, {_SPARSE_GBIT_PER_S} Gbit/s\n"
    )
    print(
        f"{'ranks':>5} {'announced':>10} {'by posts':>10} {'bytes':>7} "
        f"{'around':>10} {'as picked':>10} {'before':>10} {'now':>10}"
    )
    link_bytes_per_s = _SPARSE_GBIT_PER_S * 1e9 / 8

    def both(values: Cost, indices: Cost) -> float:
        return (
            machine.time_s(gathers.side_by_side(values, indices), link_bytes_per_s)
            * 1e3
        )

    for ranks in (64, 512, 1024, 4096):
        told = gathers.announced(ranks, 1)
        heard = gathers.posted(ranks, 1)
        announced_ms, posted_ms = both(told, told), both(heard, heard)
        for nbytes in (64, 1024):
            # An index has 8 bytes, and a slice 16 numbers.
            around_ms, picked_ms = (
                both(way(ranks, 1, nbytes), way(ranks, 1, nbytes / 8))
                for way in (gathers.around, gathers.picked)
            )
            print(
                f"{ranks:>5} {announced_ms:>10.2f} {posted_ms:>10.2f} {nbytes:>7} "
                f"{around_ms:>10.2f} {picked_ms:>10.2f} "
                f"{announced_ms + around_ms:>10.2f} {posted_ms + picked_ms:>10.2f}"
            )


def _print_efficiencies(
    cluster: Cluster,
    models: Sequence[Model],
    sizes: Sequence[int],
    ways: Mapping[str, Allreduce],
) -> None:
    print(f"{'model':<12} {'ranks':>5}" + "".join(f"{way:>24}" for way in ways))
    for model in models:
        for ranks in sizes:
            cells = []
            for cost_of_one in ways.values():
                size, step = predict_tuned_step(cluster, model, ranks, cost_of_one)
                cells.append(
                    f"{model.alone_s / step.step_s:>8.1%} "
                    f"({step.exposed_s * 1e3:>6.1f};{size >> 20:>4})"
                )
            print(
                f"{model.name:<12} {ranks:>5}" + "".join(f"{one:>24}" for one in cells)
            )


if __name__ == "__main__":
    sys.exit(main())
