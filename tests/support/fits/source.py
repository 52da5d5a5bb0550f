"""Writes a program as the Python that runs it: on ranks, and in one process."""

from __future__ import annotations

from support.fits.model_source import model_lines
from support.fits.program import Program

__all__ = ["source"]

_LOSSES = {
    "regression": "keras.losses.MeanSquaredError({})",
    "binary": "keras.losses.BinaryCrossentropy({})",
    "classes": "keras.losses.SparseCategoricalCrossentropy({})",
}
_OTHER_LOSSES = {
    "regression": "keras.losses.Huber(0.5, {})",
    "binary": "keras.losses.BinaryFocalCrossentropy({})",
    "classes": "keras.losses.sparse_categorical_crossentropy",
}
_METRICS = {
    "regression": {
        "first": '"mae"',
        "second": "keras.metrics.RootMeanSquaredError()",
        "third": "keras.metrics.R2Score()",
    },
    "binary": {
        "first": '"accuracy"',
        "second": 'keras.metrics.AUC(name="auc")',
        "third": "keras.metrics.F1Score(threshold=0.5)",
    },
    "classes": {
        "first": '"accuracy"',
        "second": "keras.metrics.SparseTopKCategoricalAccuracy(k=2)",
        "third": "keras.metrics.SparseCategoricalCrossentropy()",
    },
}
_OPTIMIZERS = {
    "SGD": "SGD({rate}0.1{more})",
    "momentum": "SGD({rate}0.1, momentum=0.9, nesterov=True{more})",
    "Adam": "Adam({rate}0.01{more})",
    "AdamW": "AdamW({rate}0.01{more})",
    "RMSprop": "RMSprop({rate}0.01, momentum=0.5{more})",
    "Adagrad": "Adagrad({rate}0.1{more})",
    "Adadelta": "Adadelta({rate}1.0{more})",
    "Adamax": "Adamax({rate}0.01{more})",
    "Nadam": "Nadam({rate}0.01{more})",
    "Ftrl": "Ftrl({rate}0.1{more})",
    "Lion": "Lion({rate}0.001{more})",
    "Lamb": "Lamb({rate}0.01{more})",
    "Muon": "Muon({rate}0.01{more})",
    "Adafactor": "Adafactor({rate}0.01{more})",
}
_UPDATES = {
    "all": [],
    "sharded": ["shard_state=True"],
    "sync_every": ["sync_every=1"],
    "DiLoCo": ["sync_every=1", "outer=keras.optimizers.SGD(1.0)"],
}
_SCHEDULES = {
    "exponential": "keras.optimizers.schedules.ExponentialDecay({rate}, 3, 0.8)",
    "cosine": "keras.optimizers.schedules.CosineDecay({rate}, 9)",
    "piecewise": (
        "keras.optimizers.schedules.PiecewiseConstantDecay("
        "[2, 5], [{rate}, {rate} / 2, {rate} / 4])"
    ),
}
_CALLBACKS: dict[str, tuple[str, ...]] = {
    "ours": (),
    "none": (),
    "EarlyStopping": (
        'keras.callbacks.EarlyStopping("loss", patience=0, min_delta=0.01, '
        "restore_best_weights=True)",
    ),
    "Plateau": ('keras.callbacks.ReduceLROnPlateau("loss", patience=0, factor=0.5)',),
    "Scheduler": (
        "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)",
    ),
    "several": (
        'keras.callbacks.EarlyStopping("loss", patience=1)',
        'keras.callbacks.ReduceLROnPlateau("loss", patience=0, factor=0.5)',
        "keras.callbacks.TerminateOnNaN()",
        "keras.callbacks.CSVLogger(job.path('log.csv'))",
        "keras.callbacks.ModelCheckpoint(job.path('best.weights.h5'), "
        'monitor="loss", save_weights_only=True)',
    ),
    "Warmup": ("job.warmup({rate}, 3)",),
    "RateSchedule": ("job.rate_schedule({rate}, lambda epoch: 0.5**epoch)",),
    "SwapEMA": ("keras.callbacks.SwapEMAWeights(swap_on_epoch=True)",),
    "writing": (
        "job.best_checkpoint('best.keras')",
        "keras.callbacks.BackupAndRestore(job.path('backup'))",
        "keras.callbacks.TensorBoard(job.path('board'))",
    ),
}


def source(program: Program) -> str:
    """A function `train(job)`; see `job.py` for what it is given."""
    lines = [
        "def train(job):",
        "    keras.utils.set_random_seed(job.seed)",
        f"    data = job.data({_data_arguments(program)})",
        *model_lines(program),
        "    job.prepare(model)",
        *_compile(program),
        *_fit(program),
        *_inference(program),
        "    return job.result(model)",
    ]
    return "\n".join(lines) + "\n"


def _data_arguments(program: Program) -> str:
    inputs = "words" if program.embedding else "numbers"
    arguments = [
        f"{program.task!r}",
        f"{inputs!r}",
        f"seed={program.seed}",
        f"batches={program.batches}",
        f"kind={program.data!r}",
    ]
    for name in ("remainder", "uneven", "lengths", "weights", "repeat"):
        value = getattr(program, name)
        if value != Program.__dataclass_fields__[name].default:
            arguments.append(f"{name}={value!r}")
    for flag in ("two inputs", "two outputs"):
        if program.model == flag:
            arguments.append(f"{flag.replace(' ', '_')}=True")
    return ", ".join(arguments)


def _optimizer(program: Program, name: str | None = None) -> str:
    text = _plain_optimizer(program, name or program.optimizer)
    if program.reduction != "default" and "SGD(" in text:
        text = text.replace("0.1", "0.01")  # What is much larger diverges.
    return text


def _plain_optimizer(program: Program, name: str) -> str:
    if name == "MultiOptimizer":
        return (
            "keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap("
            "keras.optimizers.SGD(0.1, momentum=0.9), "
            '{".*bias": keras.optimizers.Adam(0.01)}))'
        )
    more = ""
    if program.clip:
        more += f", {program.clip}=0.05"
    if program.ema:
        more += ", use_ema=True, ema_momentum=0.9"
    if program.ema == "overwrite":
        more += ", ema_overwrite_frequency=2"
    if program.weight_decay:
        more += ", weight_decay=0.01"
    if program.accumulation > 1 and program.accumulated_by == "keras":
        more += f", gradient_accumulation_steps={program.accumulation}"
    elif program.accumulation > 1:
        more += f", **job.accumulation({program.accumulation})"
    text = _OPTIMIZERS[name].format(rate="", more=more)
    if program.schedule:
        rate = _rate(text)
        schedule = _SCHEDULES[program.schedule].format(rate=rate)
        text = text.replace(rate, schedule, 1)
    text = f"keras.optimizers.{text}"
    if program.loss_scale:
        options = "initial_scale=job.initial_scale"
        if program.uneven:
            # A mean over few examples overflows in other steps than that over all.
            options += " / 128"
        text = f"keras.optimizers.LossScaleOptimizer({text}, {options})"
    return text


def _rate(optimizer: str) -> str:
    text = optimizer.replace("{rate}", "").replace("{more}", "")
    return text.partition("(")[2].partition(",")[0].rstrip(")")


def _compile(program: Program) -> list[str]:
    options = []
    if program.sparse_as_dense:
        options.append("sparse_as_dense=True")
    if program.compression:
        options.append(f"compression={program.compression!r}")
    if program.accumulation > 1 and program.accumulated_by == "ring":
        options.append(f"backward_passes_per_step={program.accumulation}")
        options.append("average_aggregated_gradients=True")
    options += _UPDATES[program.updates]
    distributed = ", ".join([_optimizer(program), *options])
    arguments = [f"job.optimizer({distributed})"]
    if program.step in ("two optimizers", "adversarial", "two critic steps"):
        second = ", ".join([_optimizer(program, "Adam"), *_UPDATES[program.updates]])
        arguments.append(f"job.optimizer({second})")
    if program.step == "tape":
        arguments = ['"sgd"']
    reduction = {"default": "", "sum": 'reduction="sum"', "none": "reduction=None"}
    losses = _LOSSES if program.loss == "plain" else _OTHER_LOSSES
    loss = losses[program.task].format(reduction[program.reduction])
    metrics = [_METRICS[program.task][name] for name in program.metrics]
    if program.model == "two outputs":
        loss = f'{{"first": {loss}, "second": "mse"}}'
        arguments.append('loss_weights={"first": 1.0, "second": 0.3}')
        if metrics:
            arguments.append(f'metrics={{"first": [{", ".join(metrics)}]}}')
    elif metrics:
        arguments.append(f"metrics=[{', '.join(metrics)}]")
    if program.weighted_metrics:
        arguments.append(
            f"weighted_metrics=[{_METRICS[program.task]['second']}]"
            if "second" not in program.metrics
            else f"weighted_metrics=[{_METRICS[program.task]['first']}]"
        )
    arguments.append(f"loss={loss}")
    if program.jit:
        arguments.append("jit_compile=True")
    else:
        arguments.append("jit_compile=False")
    if program.execution > 1:
        arguments.append(f"steps_per_execution={program.execution}")
    if program.eagerly:
        arguments.append("run_eagerly=True")
    return [
        "    def compile(model):",
        f"        model.compile({', '.join(arguments)})",
        "    compile(model)",
        "    job.build(model, data)",
    ]


def _fit(program: Program) -> list[str]:
    rate = _rate(_OPTIMIZERS.get(program.optimizer, "({rate}0.1)"))
    callbacks = ", ".join(_CALLBACKS[program.callbacks]).replace("{rate}", rate)
    ours = program.callbacks != "none"
    arguments = [f"epochs={program.epochs}"]
    arguments.append(
        f"callbacks=job.callbacks([{callbacks}], order={program.order}, ours={ours})"
    )
    if program.validation:
        arguments.append(f"validation={program.validation!r}")
    fit = f"    job.fit(model, data, {', '.join(arguments)})"
    lines = [fit]
    if program.fits > 1:
        lines += {
            "nothing": [],
            "evaluate": ["    job.infer(model, data, by='keras')"],
            "weights": [
                "    model.save_weights(job.path('between.weights.h5'))",
                "    model.load_weights(job.path('between.weights.h5'))",
            ],
            "compile": ["    compile(model)", "    job.build(model, data)"],
            "save and load": ["    model = job.saved_and_loaded(model)"],
            "flip trainable": [
                "    trunk[-1].trainable = not trunk[-1].trainable",
                "    compile(model)",
                "    job.build(model, data)",
            ],
        }[program.between]
        lines.append(fit)
    return lines


def _inference(program: Program) -> list[str]:
    if program.inference is None:
        return []
    return [f"    job.infer(model, data, by={program.inference!r})"]
