"""Training over slow links: gradients in every step beside ranks that seldom meet.

    sudo python -m benchmarks.slow_links
    sudo python -m benchmarks.slow_links --models cnn --rates 100mbit --turns 1

Makes 4 network namespaces for each rate, with one rank in each, and removes them. Where
links delay and lose packets, too, it is this process that carries them. The ways take
turns; a way's time is the median of its turns, as a share of what the same steps take
without any communication. Quality is that of as many examples in every way,
on links without a limit, as rates have no effect on it. At last the seconds, of which
some are tracing, until the test data are known so well.

torch's DistributedDataParallel, with and without its PowerSGD, and torchft train the
MLP beside us, if `make_environments.sh torchft` has been run: as a share of the same
steps of torch without communication.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import Load, describe_machine
from benchmarks.scaling.launch import Hosts, run_on_hosts
from benchmarks.slow_links import torch_job
from benchmarks.slow_links.links import make_hosts

RANK = str(Path(__file__).with_name("rank.py"))
HOSTS = 4
LIMIT_S = 900
# Updates between two meetings, and those that overlap one: longer than int8 takes.
APART = 100
OVERLAP = 40
# In an epoch, at whose end all meet once more and wait for it.
WINDOWS = 10
RATES = ["1gbit", "100mbit", "20mbit,40ms,1%"]

WAYS: dict[str, dict[str, Any]] = {
    "no communication": {"kind": "alone"},
    "Keras alone": {"kind": "keras"},
    "gradients": {"kind": "gradients"},
    "gradients, bfloat16": {"kind": "gradients", "compression": "bf16"},
    "gradients, PowerSGD": {"kind": "gradients", "powersgd": 2},
    "weights averaged": {"kind": "gradients", "sync_every": APART},
    "DiLoCo": {"kind": "diloco", "momentum": 0.5, "sync_every": APART},
    "DiLoCo, int8": {
        "kind": "diloco",
        "momentum": 0.5,
        "sync_every": APART,
        "wire": "int8",
    },
    "DiLoCo, 4 fragments, overlap": {
        "kind": "diloco",
        "momentum": 0.5,
        "sync_every": APART,
        "fragments": 4,
        "overlap_steps": OVERLAP,
    },
    "DiLoCo, 4 fragments, overlap, int8": {
        "kind": "diloco",
        "momentum": 0.5,
        "sync_every": APART,
        "fragments": 4,
        "overlap_steps": OVERLAP,
        "wire": "int8",
    },
}

ALONE = "no communication"
# Ranks that learn nothing of each other: what we do in a job of one, and Keras.
LONE = (ALONE, "Keras alone")
ALONE_IN_TORCH = "torch, no communication"
TORCHS: dict[str, dict[str, Any]] = {
    ALONE_IN_TORCH: {"kind": "alone"},
    "torch DDP": {"kind": "ddp"},
    "torch DDP, PowerSGD": {"kind": "ddp", "powersgd": 2},
    "torchft, LocalSGD": {"kind": "average", "sync_every": APART},
    "torchft, DiLoCo": {"kind": "diloco", "momentum": 0.5, "sync_every": APART},
}
ALL_WAYS = WAYS | TORCHS


def is_apart(way: str) -> bool:
    """Whether its ranks take steps without the others."""
    return way in (*LONE, ALONE_IN_TORCH) or "sync_every" in ALL_WAYS[way]


def ways_of(model: str, ways: list[str]) -> list[str]:
    """Those, and torch's where it can be had."""
    return [*ways, *TORCHS] if model == "mlp" and torch_job.is_there() else ways


def train(
    network: Hosts,
    model: str,
    way: str,
    epochs: int,
    steps: int,
    until: float | None = None,
    apart: int = APART,
) -> dict[str, Any]:
    """A job of 4 ranks; what the first has to say.

    Args:
        network: Its hosts.
        model: The name of what it trains.
        way: Of `ALL_WAYS`.
        epochs: How many, at most.
        steps: Of an epoch.
        until: The accuracy with which training ends before; None: it does not.
        apart: Updates between two meetings, where the way has any.
    """
    options = dict(ALL_WAYS[way])
    if "sync_every" in options:
        options["sync_every"] = apart
    if "overlap_steps" in options:
        # As large a part of the window.
        options["overlap_steps"] = OVERLAP * apart // APART
    task = {
        "model": model,
        "way": options,
        "epochs": epochs,
        "steps": steps,
        "until": until,
        # What Keras and `fit` do around an execution hardly counts.
        "steps_per_execution": min(steps, apart // 4),
        "size": HOSTS,
    }
    if way in TORCHS:
        return torch_job.train(network, task, LIMIT_S)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as result:
        run_on_hosts(
            network,
            hosts=HOSTS,
            per_host=1,
            arguments=[RANK, json.dumps(task), result.name],
            environment={"PYTHONPATH": os.pathsep.join(sys.path)},
            timeout_s=LIMIT_S,
        )
        said: dict[str, Any] = json.load(result)
    return said


def measure_times(
    rate: str, models: list[str], ways: list[str], turns: int, steps: int
) -> dict[tuple[str, str], dict[str, float]]:
    """Of every model and way: the seconds and bytes of a step."""
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with make_hosts(HOSTS, rate) as network:
        for _ in range(turns):
            for model in models:
                for way in ways_of(model, ways):
                    # A step of gradients may take seconds.
                    count = WINDOWS * APART if is_apart(way) else steps
                    epochs = 2 if is_apart(way) else 3
                    said = train(network, model, way, epochs, count)
                    seconds = statistics.median(said["step_s"])
                    print(f"{rate}, {model}, {way}: {seconds:.4f} s", file=sys.stderr)
                    measured.setdefault((model, way), []).append(said)
    return {
        key: {
            what: statistics.median(one for said in turns for one in said[what])
            for what in ("step_s", "step_bytes")
        }
        for key, turns in measured.items()
    }


def report_times(rate: str, measured: dict[tuple[str, str], dict[str, float]]) -> None:
    """A row for each model and way."""
    print(f"\n| {rate} | way | share of no communication | ms/step | bytes/step |")
    print("|---|---|---|---|---|")
    for (model, way), figures in measured.items():
        alone = ALONE_IN_TORCH if way in TORCHS else ALONE
        alone_s = measured[model, alone]["step_s"]
        nbytes = "" if way in TORCHS else f"{figures['step_bytes']:,.0f}"
        print(
            f"| {model} | {way} | {alone_s / figures['step_s']:.3f} "
            f"| {figures['step_s'] * 1e3:.2f} | {nbytes} |"
        )


def report_quality(
    models: list[str], ways: list[str], examples: int, aparts: list[int]
) -> None:
    """Trains every way on as many examples, where links have no limit."""
    epochs = max(2, examples // (HOSTS * 8 * 2 * APART))
    count = epochs * HOSTS * 8 * 2 * APART
    print(f"\n| after {count:,} examples | way | meets every | loss | accuracy |")
    print("|---|---|---|---|---|")
    with make_hosts(HOSTS) as network:
        for model in models:
            for way in ways_of(model, ways):
                if way in (*LONE, ALONE_IN_TORCH):
                    continue
                for apart in aparts if is_apart(way) else [1]:
                    said = train(
                        network, model, way, epochs, 2 * APART, apart=max(apart, 4)
                    )
                    row = f"{said['loss']:.4f} | {said['accuracy']:.2%}"
                    print(f"| {model} | {way} | {apart} | {row} |", flush=True)


def report_times_to(rate: str, model: str, accuracy: float, ways: list[str]) -> None:
    """How long each takes at that rate until the test data are known so well."""
    print(f"\n| {model} at {rate}, until {accuracy:.0%} | s | times as soon |")
    print("|---|---|---|")
    first_s = None
    with make_hosts(HOSTS, rate) as network:
        for way in ways:
            if way in LONE:
                continue
            steps = APART if is_apart(way) else APART // 4
            said = train(network, model, way, 100 * APART // steps, steps, accuracy)
            total_s = said["total_s"]
            first_s = first_s or total_s
            reached = "" if said["accuracy"] >= accuracy else " (not reached)"
            row = f"| {way} | {total_s:.1f}{reached} | {first_s / total_s:.1f} |"
            print(row, flush=True)


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["cnn", "mlp", "transformer"])
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS)[1:], default=list(WAYS)[1:]
    )
    parser.add_argument(
        "--rates",
        nargs="*",
        default=RATES,
        help="RATE, or RATE,ROUND TRIP,LOSS",
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=10, help="of gradients in each measured epoch"
    )
    parser.add_argument(
        "--examples", type=int, default=64000, help="for quality; 0: leave it out"
    )
    parser.add_argument(
        "--apart",
        nargs="+",
        type=int,
        default=[25, APART],
        help="updates between two meetings, for quality",
    )
    parser.add_argument(
        "--until",
        default="mlp=0.95",
        metavar="MODEL=ACCURACY",
        help="how long that takes at 100 Mbit/s; empty: leave it out",
    )
    options = parser.parse_args()
    ways = [next(iter(WAYS)), *options.ways]
    if os.geteuid() != 0:
        parser.error("making network namespaces needs root")
    # So that the namespaces go, whoever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for what, text in describe_machine().items():
        print(f"{what}: {text}")
    before = Load.now()
    print(f"load: {before.average:.2f}", flush=True)
    for rate in options.rates:
        measured = measure_times(
            rate, options.models, ways, options.turns, options.steps
        )
        report_times(rate, measured)
    if options.examples:
        report_quality(options.models, ways, options.examples, options.apart)
    if options.until:
        model, _, accuracy = options.until.partition("=")
        report_times_to("100mbit", model, float(accuracy), ways)
    after = Load.now()
    stolen = after.stolen_since(before)
    print(f"\nload: {after.average:.2f}; the hypervisor took {stolen:.1%}")


if __name__ == "__main__":
    main()
