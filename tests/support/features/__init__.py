"""What Keras offers, each with a way to measure how far ranks are from one process.

A feature is a function that runs on every rank of a job, trains or evaluates
there, does the same in one process on the global batch, and returns what differs.
The tests hold them to their limits; the table in docs/keras.md is what they
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """What one rank found.

    Attributes:
        weights: Largest difference of a weight; None if no weights are compared.
        metrics: Largest difference of a metric; None likewise.
        state: Must be the same on every rank.
    """

    weights: float | None = None
    metrics: float | None = None
    state: bytes = b""


@dataclass(frozen=True)
class Feature:
    """One line of the table.

    Attributes:
        name: As the table has it.
        measure: Runs on every rank.
        weight_limit: What a weight may differ by.
        metric_limit: What a metric may differ by.
        needs: A module that must be installed.
    """

    name: str
    measure: Callable[[], Difference]
    weight_limit: float = 1e-6
    metric_limit: float = 1e-6
    needs: str = "keras"


def measure_group(group: str, names: list[str]) -> list[Difference]:
    """Measures some features of a group, on every rank."""
    from support.features.groups import GROUPS

    by_name = {feature.name: feature for feature in GROUPS[group]}
    return [by_name[name].measure() for name in names]


def faults(feature: Feature, by_rank: Sequence[Difference]) -> list[str]:
    """What is wrong with what the ranks found, in words."""
    found = []
    if len({result.state for result in by_rank}) != 1:
        found.append(f"{feature.name}: ranks differ")
    for what, value, limit in (
        ("weights", by_rank[0].weights, feature.weight_limit),
        ("metrics", by_rank[0].metrics, feature.metric_limit),
    ):
        if value is not None and not value <= limit:
            found.append(f"{feature.name}: {what} differ by {value:.1e} > {limit:.0e}")
    return found
