"""One drawn training program: a choice for each thing that a script decides."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any

from support.fits.rules import RULES

# Of each choice, the first one is the plainest; a shrunk program has few others.
CHOICES: dict[str, tuple[Any, ...]] = {
    "size": (2, 3, 4),
    "transport": ("shm", "tcp", "mixed"),
    # Who trains: all ranks, or all but one.
    "members": ("all", "some"),
    "floats": ("float64", "float32", "mixed_float16", "mixed_bfloat16"),
    # The model.
    "model": (
        "sequential",
        "functional",
        "unbuilt",
        "two inputs",
        "two outputs",
        "subclassed",
        "nested",
        "shared layer",
    ),
    "normalization": (False, True),
    "embedding": (False, True),
    "mask": (False, True),
    "sequence": (None, "LSTM", "GRU", "Bidirectional", "Conv1D", "attention"),
    "batch_norm": (False, True),
    "dropout": (False, True),
    "local": (False, True),
    "regularizer": (None, "l2", "activity"),
    "add_loss": (False, True),
    "frozen": (False, True),
    "step": (
        "keras",
        "custom",
        "tape",
        "two optimizers",
        "adversarial",
        "two critic steps",
    ),
    # The task.
    "task": ("regression", "binary", "classes"),
    "loss": ("plain", "other"),
    "reduction": ("default", "sum", "none"),
    "metrics": ((), ("first",), ("second",), ("first", "second", "third")),
    "weighted_metrics": (False, True),
    # The optimizer.
    "optimizer": (
        "SGD",
        "momentum",
        "Adam",
        "AdamW",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "Nadam",
        "Ftrl",
        "Lion",
        "Lamb",
        "Muon",
        "Adafactor",
        "MultiOptimizer",
    ),
    "clip": (None, "clipnorm", "clipvalue", "global_clipnorm"),
    "ema": (None, "ema", "overwrite"),
    "weight_decay": (False, True),
    "accumulation": (1, 2, 3),
    "accumulated_by": ("keras", "ring"),
    "loss_scale": (False, True),
    "schedule": (None, "exponential", "cosine", "piecewise"),
    "sparse_as_dense": (False, True),
    "compression": (None, "fp16", "bf16"),
    # Which rank updates a variable; or ranks average weights after each update.
    "updates": ("all", "sharded", "sync_every", "DiLoCo"),
    # The data.
    "data": ("dataset", "arrays", "PyDataset", "filter", "generator"),
    # Whether ranks have other numbers of batches.
    "lengths": ("equal", "other"),
    "remainder": ("drop", "keep", "pad", "join"),
    "uneven": (0, 1, 2, 5),
    "batches": (4, 3, 5, 7),
    "weights": (None, "sample", "class", "zeros"),
    "validation": (None, "dataset", "arrays", "one row"),
    "repeat": (False, True),
    # fit.
    "fits": (1, 2),
    "between": (
        "nothing",
        "compile",
        "evaluate",
        "weights",
        "save and load",
        "flip trainable",
    ),
    "epochs": (1, 2, 3),
    "jit": (False, True),
    "execution": (1, 2, 3),
    "eagerly": (False, True),
    "callbacks": (
        "ours",
        "none",
        "EarlyStopping",
        "Plateau",
        "Scheduler",
        "several",
        "Warmup",
        "RateSchedule",
        "SwapEMA",
        "writing",
    ),
    "order": (0, 1, 2, 3),
    # Afterwards.
    "inference": (None, "keras", "ring"),
    # What happens meanwhile, and before which step.
    "interruption": (None, "preempted", "killed"),
    "at": (1, 2, 3, 5),
}


@dataclass(frozen=True)
class Program:
    """A choice of each kind; see `CHOICES`."""

    seed: int
    size: int = 2
    transport: str = "shm"
    members: str = "all"
    floats: str = "float64"
    model: str = "sequential"
    normalization: bool = False
    embedding: bool = False
    mask: bool = False
    sequence: str | None = None
    batch_norm: bool = False
    dropout: bool = False
    local: bool = False
    regularizer: str | None = None
    add_loss: bool = False
    frozen: bool = False
    step: str = "keras"
    task: str = "regression"
    loss: str = "plain"
    reduction: str = "default"
    metrics: tuple[str, ...] = ()
    weighted_metrics: bool = False
    optimizer: str = "SGD"
    clip: str | None = None
    ema: str | None = None
    weight_decay: bool = False
    accumulation: int = 1
    accumulated_by: str = "keras"
    loss_scale: bool = False
    schedule: str | None = None
    sparse_as_dense: bool = False
    compression: str | None = None
    updates: str = "all"
    data: str = "dataset"
    lengths: str = "equal"
    remainder: str = "drop"
    uneven: int = 0
    batches: int = 4
    weights: str | None = None
    validation: str | None = None
    repeat: bool = False
    fits: int = 1
    between: str = "nothing"
    epochs: int = 1
    jit: bool = False
    execution: int = 1
    eagerly: bool = False
    callbacks: str = "ours"
    order: int = 0
    inference: str | None = None
    interruption: str | None = None
    at: int = 1

    @property
    def trainers(self) -> list[int]:
        """The ranks that train."""
        outsider = self.seed % self.size if self.members == "some" else None
        return [rank for rank in range(self.size) if rank != outsider]

    def __str__(self) -> str:
        """What is not the plainest."""
        chosen = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name == "seed" or getattr(self, field.name) != field.default
        ]
        return ", ".join(chosen)


# They take as long as several others.
_RARE = {"preempted": 0.3, "killed": 0.1}


def made_possible(program: Program) -> Program:
    """The program with what rules out each other made plain."""
    before = None
    while program != before:  # One rule may bring about another one's condition.
        before = program
        for condition, consequence in RULES:
            if all(getattr(program, key) in of for key, of in condition.items()):
                program = replace(program, **consequence)
    return program


def draw(seed: int) -> Program:
    """The program of that seed: about a third of its choices are not the plainest."""
    generator = random.Random(seed)
    boldness = generator.choice((0.1, 0.2, 0.3, 0.4))
    chosen: dict[str, Any] = {}
    for name, choices in CHOICES.items():
        plain = generator.random() > boldness
        chosen[name] = choices[0] if plain else generator.choice(choices[1:])
    # Kinds of models and data are what all else meets.
    for name in ("model", "optimizer", "data", "task"):
        chosen[name] = generator.choice(CHOICES[name])
    chosen["size"] = generator.choice((2, 2, 2, 3, 3, 4))  # Few are quicker.
    if generator.random() > _RARE.get(chosen["interruption"], 1.0):
        chosen["interruption"] = None
    return made_possible(Program(seed=seed, **chosen))


def simpler(program: Program) -> list[Program]:
    """Programs that differ from this one in one choice, which is plainer."""
    found = []
    for name, choices in CHOICES.items():
        at = choices.index(getattr(program, name))
        for choice in dict.fromkeys((choices[0], choices[max(0, at - 1)])):
            if choice != choices[at]:
                candidate = made_possible(replace(program, **{name: choice}))
                if candidate != program and candidate not in found:
                    found.append(candidate)
    return found
