"""Which choices go together.

When one choice is made, others have no meaning, or one that is known to differ from
one process: docs/exactness.md, "What is not equal".
"""

from __future__ import annotations

from typing import Any

__all__ = ["RULES"]

_OWN_LOSSES = ("two optimizers", "tape", "adversarial", "two critic steps")
_OURS = {"callbacks": "ours"}
_DATASET = {"data": "dataset"}
_SHORT_FLOATS = ("mixed_float16", "mixed_bfloat16")
_OF_WHOLE_VARIABLES = ("Lamb", "Muon", "Adafactor", "MultiOptimizer")
_COUNTING = ("none", "EarlyStopping", "Plateau", "several", "SwapEMA", "writing")
_NOT_LINEAR = (
    *("Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"),
    *("Lion", "Lamb", "Muon", "Adafactor", "MultiOptimizer"),
)
_APART = ("sync_every", "DiLoCo")
_SEVERAL_OPTIMIZERS = ("two optimizers", "adversarial", "two critic steps")

# If choices are among these, others become those.
RULES: tuple[tuple[dict[str, tuple[Any, ...]], dict[str, Any]], ...] = (
    # Keras's: one loss for one output, one way to run, arrays of one model.
    ({"step": _OWN_LOSSES}, {"reduction": "default", "clip": None}),
    (
        {"step": _OWN_LOSSES},
        {"model": "subclassed", "loss_scale": False, "add_loss": False},
    ),
    ({"step": _OWN_LOSSES}, {"regularizer": None, "weights": None}),
    ({"step": _OWN_LOSSES}, {"accumulated_by": "keras"}),
    ({"step": _SEVERAL_OPTIMIZERS}, {"frozen": False, "optimizer": "SGD"}),
    ({"step": _SEVERAL_OPTIMIZERS, "between": ("flip trainable",)}, {"fits": 1}),
    # At the end of such data one process begins a step that it cannot end, which
    # empties the second optimizer's accumulators.
    (
        {"step": _SEVERAL_OPTIMIZERS, "data": ("filter", "generator")},
        {"accumulation": 1},
    ),
    ({"embedding": (True,)}, {"normalization": False}),
    ({"step": ("tape",)}, {"optimizer": "SGD", "accumulation": 1, "ema": None}),
    # Without a callback of ours `fit` is not told that a tape is distributed.
    ({"step": ("tape",), "callbacks": ("none",)}, _OURS),
    ({"step": ("custom",)}, {"model": "functional"}),
    ({"step": ("custom", *_OWN_LOSSES)}, {"metrics": ()}),
    (
        {"step": ("custom", *_OWN_LOSSES)},
        {"weighted_metrics": False, "weights": None, "reduction": "default"},
    ),
    ({"model": ("two outputs",)}, {"weights": None, "weighted_metrics": False}),
    ({"model": ("two outputs",)}, {"reduction": "default"}),
    ({"model": ("two inputs", "subclassed", "unbuilt")}, {"sequence": None}),
    ({"model": ("unbuilt",)}, {"batch_norm": False, "frozen": False}),
    ({"optimizer": ("MultiOptimizer",)}, {"clip": None, "ema": None}),
    (
        {"optimizer": ("MultiOptimizer",)},
        {"accumulation": 1, "weight_decay": False, "schedule": None},
    ),
    ({"optimizer": ("Lion", "Adafactor", "Ftrl")}, {"weight_decay": False}),
    ({"optimizer": ("Muon",), "floats": ("float64",)}, {"schedule": None}),
    ({"task": ("regression",)}, {"weights": None}),
    ({"weights": ("class",)}, {"data": "dataset"}),
    ({"weights": (None,)}, {"weighted_metrics": False}),
    ({"eagerly": (True,)}, {"jit": False, "execution": 1}),
    (
        {"sequence": ("LSTM", "GRU", "Bidirectional", "Conv1D", "attention")},
        {"embedding": False, "jit": False},
    ),
    # Keras adds up losses of one dtype and shape only, and clips in float32.
    (
        {"floats": ("mixed_float16", "mixed_bfloat16")},
        {"add_loss": False, "regularizer": None, "optimizer": "SGD"},
    ),
    ({"reduction": ("none",)}, {"add_loss": False, "regularizer": None}),
    ({"clip": ("global_clipnorm",), "floats": ("float64",)}, {"floats": "float32"}),
    # Signs of what is nearly zero, and steps of its size.
    ({"floats": ("float32",), "optimizer": ("Lion",)}, {"optimizer": "SGD"}),
    # What has another meaning on ranks: documented.
    ({"floats": ("mixed_bfloat16",)}, {"loss_scale": False}),
    # 16 bits do not hold the sum over a batch that is larger.
    (
        {"floats": ("mixed_float16",), "reduction": ("sum", "none")},
        {"loss_scale": False},
    ),
    ({"embedding": (True,)}, {"sparse_as_dense": False}),
    ({"embedding": (False,)}, {"mask": False}),
    # Of floats of 32 bits, between hosts, and what is not linear makes much of it.
    ({"transport": ("shm", "tcp")}, {"compression": None}),
    ({"floats": ("float64",)}, {"compression": None}),
    ({"optimizer": _NOT_LINEAR}, {"compression": None}),
    ({"step": _SEVERAL_OPTIMIZERS}, {"compression": None}),
    ({"compression": ("fp16", "bf16")}, {"loss_scale": False}),
    ({"accumulation": (1,)}, {"accumulated_by": "keras"}),
    (
        {"callbacks": ("EarlyStopping", "Plateau", "several", "writing")},
        {"floats": "float64"},
    ),
    ({"schedule": ("exponential", "cosine", "piecewise")}, {"callbacks": "ours"}),
    ({"fits": (1,)}, {"between": "nothing"}),
    ({"between": ("save and load",)}, {"step": "keras", "add_loss": False}),
    # A loaded model's optimizer is distributed by a callback of ours.
    ({"between": ("save and load",), "callbacks": ("none",)}, {"callbacks": "ours"}),
    ({"between": ("save and load",), "model": ("subclassed",)}, {"model": "nested"}),
    ({"step": ("adversarial", "two critic steps")}, {"embedding": False}),
    # XLA has dense gradients of an embedding where the batch's size is not fixed.
    (
        {
            "embedding": (True,),
            "jit": (True,),
            "optimizer": _NOT_LINEAR,
        },
        {"jit": False},
    ),
    (
        {"embedding": (True,), "clip": ("clipnorm", "clipvalue", "global_clipnorm")},
        {"jit": False},
    ),
    ({"data": ("PyDataset", "arrays", "generator")}, {"repeat": False}),
    ({"data": ("dataset", "arrays", "PyDataset", "filter")}, {"lengths": "equal"}),
    ({"data": ("generator",)}, {"uneven": 0}),
    # A generator ends once and for all.
    ({"data": ("generator",), "remainder": ("drop", "keep")}, {"epochs": 1}),
    ({"data": ("generator",), "remainder": ("keep", "pad")}, {"remainder": "drop"}),
    ({"remainder": ("join",), "data": ("arrays", "PyDataset")}, {"data": "dataset"}),
    ({"remainder": ("join",)}, {"repeat": False}),
    ({"repeat": (True,)}, {"remainder": "drop"}),
    ({"weights": ("class",), "remainder": ("pad",)}, {"remainder": "drop"}),
    # One rate, which nobody else sets, and which is a number.
    (
        {
            "callbacks": ("Warmup", "RateSchedule"),
            "optimizer": ("MultiOptimizer",),
        },
        {"optimizer": "Adam"},
    ),
    (
        {"callbacks": ("Warmup", "RateSchedule"), "step": _OWN_LOSSES},
        {"callbacks": "ours"},
    ),
    ({"callbacks": ("Warmup", "RateSchedule")}, {"reduction": "default"}),
    # One process takes single steps then, and not a last one more for an execution.
    ({"callbacks": ("Warmup", "RateSchedule"), "repeat": (True,)}, {"execution": 1}),
    ({"callbacks": ("Warmup",), "data": ("filter", "generator")}, {"execution": 1}),
    ({"callbacks": ("RateSchedule",), "data": ("filter", "generator")}, _OURS),
    ({"callbacks": ("SwapEMA",), "ema": (None, "overwrite")}, _OURS),
    ({"callbacks": ("SwapEMA",), "step": _OWN_LOSSES}, _OURS),
    # What goes on in another process, or with fewer ranks.
    (
        {"interruption": ("preempted", "killed")},
        {"data": "dataset", "repeat": False, "fits": 1},
    ),
    ({"interruption": ("preempted", "killed"), "step": ("tape",)}, {"step": "keras"}),
    (
        {
            "interruption": ("preempted", "killed"),
            "remainder": ("join", "keep"),
        },
        {"remainder": "drop"},
    ),
    ({"interruption": ("preempted",)}, {"accumulation": 1}),
    ({"interruption": ("preempted",), "callbacks": _COUNTING}, _OURS),
    ({"interruption": ("killed",)}, {**_OURS, "accumulated_by": "keras"}),
    # One process calls `fit` for each epoch, and each takes the averages at its end.
    ({"interruption": ("killed",), "ema": ("ema", "overwrite")}, {"epochs": 1}),
    # What a lost rank has added up when an epoch ends is lost.
    ({"interruption": ("killed",), "accumulation": (3,)}, {"accumulation": 2}),
    ({"interruption": ("killed",), "accumulation": (2,)}, {"batches": 4}),
    ({"interruption": ("killed",)}, {"transport": "shm", "inference": None}),
    # Elastic needs a model that is built, with its optimizers.
    ({"interruption": ("killed",), "step": _OWN_LOSSES}, {"step": "keras"}),
    (
        {"interruption": ("killed",), "model": ("unbuilt", "subclassed")},
        {"model": "sequential"},
    ),
    ({"interruption": ("killed",), "validation": ("arrays",)}, {"validation": None}),
    ({"interruption": (None,)}, {"at": 1}),
    # Rows of a global batch belong to ranks in turn, and one process sees that.
    (
        {"local": (True,)},
        {"uneven": 0, "remainder": "drop", "validation": None, "inference": None},
    ),
    (
        {"local": (True,)},
        {"interruption": None, "step": "keras", "clip": None, "between": "nothing"},
    ),
    ({"local": (True,), "floats": _SHORT_FLOATS}, {"floats": "float32"}),
    ({"local": (True,), "data": ("arrays", "PyDataset", "generator")}, _DATASET),
    ({"local": (True,), "optimizer": _OF_WHOLE_VARIABLES}, {"optimizer": "SGD"}),
    ({"local": (True,), "callbacks": ("writing",)}, _OURS),
    # Keras's BackupAndRestore refuses it.
    ({"model": ("unbuilt",), "callbacks": ("writing",)}, _OURS),
    # Not yet for some of the ranks, nor where ranks are lost or go on later.
    ({"updates": ("sharded", *_APART)}, {"members": "all", "interruption": None}),
    ({"updates": ("sharded", *_APART)}, {"local": False}),
    ({"updates": ("sharded", *_APART), "step": ("tape",)}, {"step": "keras"}),
    (
        {"updates": ("sharded",), "optimizer": ("Adafactor", "MultiOptimizer")},
        {"optimizer": "Adam"},
    ),
    ({"updates": ("sharded",), "callbacks": ("writing",)}, _OURS),
    # One process counts a step at the end of data of unknown length.
    ({"updates": ("sharded", *_APART), "data": ("filter", "generator")}, _DATASET),
    # Averages of weights are those of gradients if an update is linear in them, and
    # each rank's gradient weighs as much.
    ({"updates": _APART, "optimizer": _NOT_LINEAR}, {"optimizer": "SGD"}),
    ({"updates": _APART, "step": _SEVERAL_OPTIMIZERS}, {"step": "keras"}),
    (
        {"updates": _APART},
        {"clip": None, "ema": None, "loss_scale": False, "compression": None},
    ),
    ({"updates": _APART}, {"accumulated_by": "keras", "reduction": "default"}),
    ({"updates": _APART}, {"sparse_as_dense": False}),
    ({"updates": _APART, "floats": _SHORT_FLOATS}, {"floats": "float32"}),
    # A rank's own update weighs the batches of an accumulation alike.
    ({"updates": _APART, "accumulation": (2, 3)}, {"uneven": 0}),
    # A `fit` begins with the first rank's momentum, and a rank's momentum weighs its
    # batches alike.
    ({"updates": _APART, "optimizer": ("momentum",)}, {"fits": 1, "uneven": 0}),
    ({"transport": ("mixed",)}, {"size": 3}),
    # Two of three, or three of four.
    ({"members": ("some",), "size": (2,)}, {"size": 3}),
    ({"members": ("some",)}, {"interruption": None}),
    ({"members": ("some",), "step": ("tape",)}, {"step": "keras"}),
    # A file does not say for which ranks an optimizer is.
    ({"members": ("some",), "between": ("save and load",)}, {"between": "nothing"}),
)
