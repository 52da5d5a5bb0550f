"""Steps of training: three models, `fit`, compiled too, and a loop of one's own."""

from __future__ import annotations

from benchmarks.cases import Column, Row, Section, Target
from benchmarks.peers.alone import ALONE
from benchmarks.peers.horovod import HOROVOD
from benchmarks.peers.mwms import MWMS, MWMS_KERAS_2
from benchmarks.peers.ring_keras import TENSORS
from benchmarks.peers.torch_gloo import TORCH

__all__ = ["training"]

_OURS = "ring_keras"
_CEILING = "independent processes"
# By the beginning of a column's title. Ranks update in one pass, and Keras alone does
# not, but where XLA compiles the step.
_OF_CEILING = {
    "mlp, fit": 1.1,
    "mlp, custom": 0.95,
    "mlp, compiled": 0.97,
    "mlp+adam, fit": 1.3,
    "mlp+adam, custom": 0.95,
    "mlp+adam, compiled": 0.97,
    "cnn": 1.0,
    "deep": 0.97,
}
_PEERS = ["Horovod", "MWMS", "MWMS, tf_keras", "torch DDP"]


def training(quick: bool) -> list[Section]:
    """On 2 ranks, and on 4; only the small models on 2, if `quick`."""
    models = ("cnn", "deep") if quick else ("mlp", "mlp+adam", "cnn", "deep")
    columns = [
        Column(f"{model}, {loop}", f"model={model} loop={loop}")
        for model in models
        for loop in ("fit", "custom", *(["compiled"] if "mlp" in model else []))
    ]
    on_two = _section(2, _rows(2), columns)
    # So many processes that only the nearest peers have memory left.
    near = [row for row in _rows(4) if "MWMS" not in row.title]
    return [on_two] if quick else [on_two, _section(4, near, columns)]


def _rows(ranks: int) -> list[Row]:
    alone = f"{ranks} {_CEILING}"
    return [
        Row(_OURS, TENSORS, "train", same="digest"),
        Row(
            f"{_OURS}, shard_state",
            TENSORS,
            "train state=sharded",
            same="digest state=sharded",
        ),
        Row(alone, ALONE, "train_alone"),
        Row(
            f"{ranks} processes that meet in each step", TENSORS, "train state=meeting"
        ),
        Row("1 process", ALONE, "train_alone", alone=True),
        Row("Horovod", HOROVOD, "train", same="digest"),
        Row(f"{alone}, Horovod's TensorFlow", HOROVOD, "train_alone"),
        Row("MWMS", MWMS, "train", same="digest"),
        Row("MWMS, tf_keras", MWMS_KERAS_2, "train", same="digest"),
        Row("torch DDP", TORCH, "train", same="digest"),
        Row(
            "torch DDP, ZeroRedundancyOptimizer",
            TORCH,
            "train state=sharded",
            same="digest state=sharded",
        ),
        Row(f"{alone}, torch", TORCH, "train_alone"),
    ]


def _section(ranks: int, rows: list[Row], columns: list[Column]) -> Section:
    there = {row.title for row in rows}
    alone = f"{ranks} {_CEILING}"
    targets = [
        *(
            Target([c.title for c in columns], _OURS, [peer], 1)
            for peer in _PEERS
            if peer in there
        ),
        *(
            Target(titles, _OURS, [alone], ratio)
            for start, ratio in _OF_CEILING.items()
            if (titles := [c.title for c in columns if c.title.startswith(start)])
        ),
    ]
    ceilings = {
        _OURS: alone,
        f"{_OURS}, shard_state": alone,
        "Horovod": f"{alone}, Horovod's TensorFlow",
        "MWMS": alone,
        "torch DDP": f"{alone}, torch",
    }
    title = f"Training, one step of one rank's batch, {ranks} ranks"
    return Section(
        title,
        ranks,
        rows,
        columns,
        targets,
        {ours: other for ours, other in ceilings.items() if ours in there},
        round_scale=4,
    )
