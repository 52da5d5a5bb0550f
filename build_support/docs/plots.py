"""Draws the plots of docs/ from what was measured: `make plots`.

Each is written twice, for light and for dark pages. Drawings made by hand are read
from docs/images/drawings, in which the light colours stand, and get a dark one, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

ROOT_DIR = Path(__file__).resolve().parents[2]
RESULTS_DIR = ROOT_DIR / "benchmarks" / "results"
IMAGES_DIR = ROOT_DIR / "docs" / "images"

# The light colour of each, and what takes its place on a dark page.
DARK = {
    "#1f2330": "#e2e4ee",  # Ink.
    "#5b6172": "#a3a9bc",  # Paler ink.
    "#d9dce5": "#3a3f50",  # Lines.
    "#ffffff": "#1e2129",  # Paper.
    "#eef0fb": "#2b3052",  # Fills.
    "#f6f7fa": "#282c37",
    "#e6f4ea": "#213a2c",
    "#fdf1e0": "#43351f",
    "#4051b5": "#8c9eff",  # Ours.
    "#2e7d4f": "#7ccf9b",
    "#b3261e": "#ff8a80",
    "#b26a00": "#ffb74d",
    "#6d4aa8": "#c3a6f2",
    "#8a90a2": "#777d90",
}
INK, PALE, LINES, PAPER = "#1f2330", "#5b6172", "#d9dce5", "#ffffff"
OURS = "#4051b5"
PEERS = ["#2e7d4f", "#b26a00", "#6d4aa8", "#b3261e", "#8a90a2"]

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


@dataclass(frozen=True)
class Colours:
    """Those of one kind of page."""

    dark: bool

    def __getitem__(self, light: str) -> str:
        return DARK[light] if self.dark else light


def main() -> int:
    """Writes all of them."""
    for name, draw in PLOTS.items():
        for dark in (False, True):
            _write(name, draw, Colours(dark))
    for source in sorted((IMAGES_DIR / "drawings").glob("*.svg")):
        text = source.read_text()
        (IMAGES_DIR / f"{source.stem}-light.svg").write_text(text)
        (IMAGES_DIR / f"{source.stem}-dark.svg").write_text(_darkened(text))
    return 0


def _darkened(text: str) -> str:
    for light, dark in DARK.items():
        text = text.replace(light, dark)
    return text


def _write(name: str, draw: Callable[[Any, Colours], None], colours: Colours) -> None:
    settings: Any = {
        "axes.edgecolor": colours[LINES],
        "axes.labelcolor": colours[PALE],
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": colours[INK],
        "figure.facecolor": colours[PAPER],
        "axes.facecolor": colours[PAPER],
        "font.family": "sans-serif",
        "font.size": 11,
        "grid.color": colours[LINES],
        "legend.frameon": False,
        "legend.labelcolor": colours[INK],
        "svg.fonttype": "none",  # Text, which a reader can search.
        "svg.hashsalt": name,  # The same file each time.
        "text.color": colours[INK],
        "xtick.color": colours[PALE],
        "ytick.color": colours[PALE],
    }
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(figsize=(7.6, 4.2), layout="constrained")
        draw(axes, colours)
        suffix = "dark" if colours.dark else "light"
        target = IMAGES_DIR / f"{name}-{suffix}.svg"
        figure.savefig(target, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    # Readers see the fonts that they have.
    text = target.read_text().replace("DejaVu Sans", "system-ui")
    target.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def load(name: str) -> Any:
    return json.loads((RESULTS_DIR / f"{name}.json").read_text())


def nbytes_of(case: str) -> int:
    number, unit = case.split()
    return int(number) * _UNITS[unit]


def bandwidth(axes: Any, colours: Colours) -> None:
    """Bus bandwidth by size, on one host."""
    results = load("allreduce_2_ranks")
    shown = {
        "ring_keras": (OURS, "o", 2.4),
        "ring_keras, shared buffers": (OURS, "s", 1.4),
        "Intel MPI": (PEERS[0], "^", 1.6),
        "Open MPI": (PEERS[1], "v", 1.6),
        "oneCCL": (PEERS[2], "D", 1.6),
        "torch gloo": (PEERS[3], "x", 1.6),
    }
    ranks = results["ranks"]
    for name, (colour, marker, width) in shown.items():
        times = results["times_s"][name]
        sizes = [nbytes_of(case) for case in times]
        speeds = [
            size * 2 * (ranks - 1) / ranks / seconds[0] / 1e9
            for size, seconds in zip(sizes, times.values(), strict=True)
        ]
        axes.plot(
            sizes,
            speeds,
            label=name,
            color=colours[colour],
            marker=marker,
            markersize=5,
            linewidth=width,
            linestyle="--" if "shared" in name else "-",
        )
    axes.set(
        title=f"Allreduce of float32, {ranks} ranks on one host",
        xlabel="bytes of a rank's array",
        ylabel="bus bandwidth, GB/s",
        xscale="log",
        yscale="log",
    )
    labels = dict(zip(sizes, times, strict=True))
    labels.pop(nbytes_of("64 MiB"))  # No room.
    axes.set_xticks(list(labels), list(labels.values()))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.legend(fontsize=9)


def latency(axes: Any, colours: Colours) -> None:
    """Times of small allreduces, on one host."""
    results = load("allreduce_2_ranks")["times_s"]
    names = ["ring_keras", "Intel MPI", "Open MPI", "MPICH", "oneCCL", "torch gloo"]
    cases = ["4 B", "1 KiB", "64 KiB"]
    _bars(
        axes,
        colours,
        cases,
        {name: [results[name][case][0] * 1e6 for case in cases] for name in names},
    )
    axes.set(
        title="Allreduce of small arrays, 2 ranks on one host",
        ylabel="microseconds",
        yscale="log",
    )
    axes.yaxis.set_major_formatter("{x:g}")


def exposed(axes: Any, colours: Colours) -> None:
    """What a training step waits for communication."""
    results = load("training_2_ranks")["exposed_s"]
    cases = ["mlp, custom", "cnn, custom", "deep, custom"]
    _bars(
        axes,
        colours,
        ["MLP, large layers", "convolutional network", "deep and narrow"],
        {
            name: [max(0.0, results[name][case]) * 1e3 for case in cases]
            for name in results
        },
    )
    axes.set(
        title="Exposed communication of a training step, 2 ranks",
        ylabel="milliseconds a step",
    )


def scaling(axes: Any, colours: Colours) -> None:
    """Predicted efficiency up to thousands of ranks."""
    from benchmarks.scaling.fit import fit
    from benchmarks.scaling.horovods_cluster import (
        HOROVODS_EFFICIENCIES,
        horovods_cluster,
    )
    from benchmarks.scaling.measurements import load as load_measurements
    from benchmarks.scaling.models import convolutional_models
    from benchmarks.scaling.prediction import predict_tuned_step

    measured = load_measurements()
    cluster = horovods_cluster(fit(measured.points, measured.message_s))
    models = convolutional_models()
    ranks = [1 << power for power in range(2, 13)]
    colour_of = {"ResNet101": OURS, "InceptionV3": PEERS[0], "VGG16": PEERS[1]}
    # The first two lie on each other.
    styles = {"ResNet101": "-", "InceptionV3": (0, (4, 3)), "VGG16": "-"}
    for name, published in HOROVODS_EFFICIENCIES.items():
        efficiencies = []
        for count in ranks:
            _, step = predict_tuned_step(cluster, models[name], count)
            efficiencies.append(100 * models[name].alone_s / step.step_s)
        colour = colours[colour_of[name]]
        axes.plot(
            ranks,
            efficiencies,
            label=f"{name}, predicted",
            color=colour,
            linestyle=styles[name],
            linewidth=2.2,
        )
        axes.plot(
            [512],
            [100 * published],
            label=f"{name}, Horovod's published",
            color=colour,
            marker="D" if name == "InceptionV3" else "o",
            markerfacecolor="none",
            markersize=11 if name == "InceptionV3" else 7,
            linestyle="none",
        )
    axes.set(
        title="Scaling efficiency, 4 ranks a host, 25 Gbit/s",
        xlabel="ranks",
        ylabel="% of the speed of as many processes alone",
        xscale="log",
        ylim=(0, 105),
    )
    axes.set_xticks(ranks, [f"{count:,}" for count in ranks])
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.legend(fontsize=9, ncols=2, loc="lower left")


def patterns(axes: Any, colours: Colours) -> None:
    """Each pattern between hosts, beside what the model says."""
    rows = [
        row for row in load("patterns_between_hosts")["rows"] if row["bytes"] >= 1 << 20
    ]
    names = list(rows[0]["measured_s"])
    _bars(
        axes,
        colours,
        [f"{row['hosts']} hosts" for row in rows],
        {name: [row["measured_s"][name] * 1e3 for row in rows] for name in names},
        first=PEERS[4],
    )
    axes.set(
        title="Allreduce of 1 MiB between hosts, 200 Mbit/s",
        ylabel="milliseconds",
    )


def _bars(
    axes: Any,
    colours: Colours,
    groups: list[str],
    values: dict[str, list[float]],
    first: str = OURS,
) -> None:
    palette = [first, *(peer for peer in [*PEERS[:3], OURS, *PEERS[3:]])]
    palette = list(dict.fromkeys(palette))
    width = 0.8 / len(values)
    for number, (name, heights) in enumerate(values.items()):
        places = [
            group + (number - (len(values) - 1) / 2) * width
            for group in range(len(groups))
        ]
        bars = axes.bar(
            places, heights, width * 0.92, label=name, color=colours[palette[number]]
        )
        axes.bar_label(bars, fmt="%.3g", fontsize=8, color=colours[PALE], padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.legend(fontsize=9)


PLOTS: dict[str, Callable[[Any, Colours], None]] = {
    "allreduce-bandwidth": bandwidth,
    "allreduce-latency": latency,
    "exposed-communication": exposed,
    "patterns-between-hosts": patterns,
    "scaling-efficiency": scaling,
}

if __name__ == "__main__":
    sys.exit(main())
