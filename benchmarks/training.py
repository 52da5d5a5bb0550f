"""Steps of training: three models, `fit` and a loop of one's own."""

from __future__ import annotations

from benchmarks.cases import Column, Row, Section, Target
from benchmarks.peers.alone import ALONE
from benchmarks.peers.horovod import HOROVOD
from benchmarks.peers.mwms import MWMS
from benchmarks.peers.ring_keras import TENSORS
from benchmarks.peers.torch_gloo import TORCH

__all__ = ["CEILING", "OURS", "training"]

OURS = "ring_keras"
CEILING = "2 independent processes"
_PEERS = ["Horovod", "MWMS", "torch DDP"]


def training() -> list[Section]:
    """On 2 ranks, the same batch on each whatever the number of ranks."""
    rows = [
        Row(OURS, TENSORS, "train"),
        Row(CEILING, ALONE, "train"),
        Row("1 process", ALONE, "train", alone=True),
        Row("Horovod", HOROVOD, "train"),
        Row("MWMS", MWMS, "train"),
        Row("torch DDP", TORCH, "train"),
        Row("torch, 1 process", TORCH, "train package=none", alone=True),
    ]
    columns = [
        Column(f"{model}, {loop}", f"model={model} loop={loop}")
        for model in ("mlp", "cnn", "deep")
        for loop in ("fit", "custom")
    ]
    cnn = [column.title for column in columns if "cnn" in column.title]
    others = [column.title for column in columns if "cnn" not in column.title]
    targets = [
        *(Target([c.title for c in columns], OURS, [peer], 1) for peer in _PEERS),
        Target(cnn, OURS, [CEILING], 0.9),
        Target(others, OURS, [CEILING], 0.75),
    ]
    title = "Training, one step of one rank's batch, 2 ranks"
    return [Section(title, 2, rows, columns, targets, round_scale=4)]
