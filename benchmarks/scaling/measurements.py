"""What has been measured, as the file beside this one has it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scaling.fit import Point
from benchmarks.scaling.step import Model, Variable

__all__ = [
    "FILE",
    "MESSAGE",
    "REPLAYED",
    "STEPS",
    "TURNS",
    "MeasuredStep",
    "Measurements",
    "load",
]

FILE = Path(__file__).with_name("measurements.json")
# The parts of it that are no allreduces.
MESSAGE, STEPS = "message", "steps"
# Allreduces that are compared with the model, which is not fitted to them.
TURNS = "turns"

# Like a convolutional net: 16 MiB of gradients, most of them in the last layers, most
# of the work in the first.
REPLAYED = Model(
    name="replayed",
    variables=tuple(
        Variable(elements=(1 << 22) * (layer + 1) // 210, work=20 - layer)
        for layer in range(20)
    ),
    forward_s=0.4,
    backward_s=0.8,
)


@dataclass(frozen=True)
class MeasuredStep:
    """One replay of `REPLAYED`, a rank on each host.

    Attributes:
        hosts: How many.
        link_bytes_per_s: Nominal.
        cores: That all ranks together have.
        bucket_size_bytes: See `plan_buckets`.
        step_s: Median, on the slowest rank.
    """

    hosts: int
    link_bytes_per_s: float
    cores: int
    bucket_size_bytes: int
    step_s: float


@dataclass(frozen=True)
class Measurements:
    """All that is in `FILE`.

    Attributes:
        points: Allreduces by themselves.
        message_s: A core's work for one message.
        steps: Replayed training steps.
        turns: Allreduces by all algorithms in turn, in one job.
    """

    points: list[Point]
    message_s: float
    steps: list[MeasuredStep]
    turns: list[Point]


def load() -> Measurements:
    """What has been measured."""
    content: dict[str, Any] = json.loads(FILE.read_text())
    (message,) = content.pop(MESSAGE)
    steps = [MeasuredStep(**step) for step in content.pop(STEPS)]
    turns = [Point(**point) for point in content.pop(TURNS)]
    points = [Point(**point) for part in content.values() for point in part]
    return Measurements(points, message["message_s"], steps, turns)
