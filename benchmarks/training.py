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
_CEILING = "2 independent processes"
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
    """On 2 ranks; only the small models, if `quick`."""
    rows = [
        Row(_OURS, TENSORS, "train", same="digest"),
        Row(_CEILING, ALONE, "train_alone"),
        Row("1 process", ALONE, "train_alone", alone=True),
        Row("Horovod", HOROVOD, "train", same="digest"),
        Row(f"{_CEILING}, Horovod's TensorFlow", HOROVOD, "train_alone"),
        Row("MWMS", MWMS, "train", same="digest"),
        Row("MWMS, tf_keras", MWMS_KERAS_2, "train", same="digest"),
        Row("torch DDP", TORCH, "train", same="digest"),
        Row(f"{_CEILING}, torch", TORCH, "train_alone"),
    ]
    models = ("cnn", "deep") if quick else ("mlp", "mlp+adam", "cnn", "deep")
    columns = [
        Column(f"{model}, {loop}", f"model={model} loop={loop}")
        for model in models
        for loop in ("fit", "custom", *(["compiled"] if "mlp" in model else []))
    ]
    targets = [
        *(Target([c.title for c in columns], _OURS, [peer], 1) for peer in _PEERS),
        *(
            Target(titles, _OURS, [_CEILING], ratio)
            for start, ratio in _OF_CEILING.items()
            if (titles := [c.title for c in columns if c.title.startswith(start)])
        ),
    ]
    ceilings = {
        _OURS: _CEILING,
        "Horovod": f"{_CEILING}, Horovod's TensorFlow",
        "MWMS": _CEILING,
        "torch DDP": f"{_CEILING}, torch",
    }
    title = "Training, one step of one rank's batch, 2 ranks"
    return [Section(title, 2, rows, columns, targets, ceilings, round_scale=4)]
