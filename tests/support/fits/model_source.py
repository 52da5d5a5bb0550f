"""Writes the model of a program as Python."""

from __future__ import annotations

from support.fits.program import Program

__all__ = ["model_lines"]

_HEADS = {
    "regression": "keras.layers.Dense(1, dtype=job.head_dtype)",
    "binary": 'keras.layers.Dense(1, activation="sigmoid", dtype=job.head_dtype)',
    "classes": 'keras.layers.Dense(3, activation="softmax", dtype=job.head_dtype)',
}
_SEQUENCES = {
    "LSTM": ["keras.layers.LSTM(4)"],
    "GRU": ["keras.layers.GRU(4)"],
    "Bidirectional": ["keras.layers.Bidirectional(keras.layers.LSTM(3))"],
    "Conv1D": [
        'keras.layers.Conv1D(4, 2, activation="tanh")',
        "keras.layers.MaxPooling1D(2)",
        "keras.layers.Flatten()",
    ],
    "attention": ["Attends()", "keras.layers.GlobalAveragePooling1D()"],
}
_OWN_STEPS = {
    "tape": "TapeStep",
    "two optimizers": "TwoOptimizers",
    "adversarial": "Adversarial",
    "two critic steps": "Adversarial",
}


def _trunk(program: Program) -> list[str]:
    layers = []
    if program.normalization and not program.embedding:
        layers.append("job.adapted(keras.layers.Normalization(), data)")
    if program.embedding:
        mask = ", mask_zero=True" if program.mask else ""
        layers.append(f"keras.layers.Embedding(20, 4{mask})")
        layers.append("keras.layers.GlobalAveragePooling1D()")
    if program.sequence:
        layers.append("keras.layers.Reshape((3, 2))")
        layers += _SEQUENCES[program.sequence]
    if program.local:
        layers.append("job.local_layer(4)")
    options = ""
    if program.regularizer == "l2":
        options += ', kernel_regularizer="l2"'
    elif program.regularizer == "activity":
        options += ', activity_regularizer="l2"'
    if program.batch_norm:
        # A bias in front of it has no gradient but rounding.
        layers.append(f"keras.layers.Dense(8, use_bias=False{options})")
        layers.append("keras.layers.BatchNormalization(momentum=0.9)")
        layers.append('keras.layers.Activation("tanh")')
    else:
        layers.append(f'keras.layers.Dense(8, activation="tanh"{options})')
    if program.add_loss:
        layers.append("AddsLoss()")
    if program.dropout:
        layers.append("keras.layers.Dropout(0.0)")
    return layers


def model_lines(program: Program) -> list[str]:
    """Of `train(job)`: they make `trunk`, `head` and `model`."""
    head = _HEADS[program.task]
    lines = ["    trunk = ["]
    lines += [f"        {layer}," for layer in _trunk(program)]
    lines += ["    ]", f"    head = {head}"]
    inputs = "keras.Input((6,), dtype=data.dtype)"
    if program.step in _OWN_STEPS:
        lines.append(f"    model = {_OWN_STEPS[program.step]}(trunk, head)")
        lines.append("    model(data.first_rows)")
        if program.step == "two critic steps":
            lines.append("    model.critic_steps = 2")
        if program.step == "tape":
            lines.append("    model.make_tape = job.tape")
    elif program.model == "subclassed":
        lines.append("    model = Subclassed(trunk, head)")
    elif program.model == "sequential":
        lines.append(f"    model = keras.Sequential([{inputs}, *trunk, head])")
    elif program.model == "unbuilt":
        lines.append("    model = keras.Sequential([*trunk, head])")
    else:
        cls = "CustomStep" if program.step == "custom" else "keras.Model"
        lines += _functional(program, inputs, cls)
    if program.frozen:
        lines.append("    trunk[-1].trainable = False")
    return lines


def _functional(program: Program, inputs: str, cls: str) -> list[str]:
    if program.model == "two inputs":
        return [
            f'    inputs = {{"a": {inputs}, "b": {inputs}}}',
            '    joined = keras.layers.Concatenate()([chain(trunk, inputs["a"]), '
            'chain(trunk, inputs["b"])])',
            f"    model = {cls}(inputs, head(joined))",
        ]
    lines = [f"    inputs = {inputs}"]
    if program.model == "nested":
        lines.append("    hidden = keras.Sequential(trunk)(inputs)")
    else:
        lines.append("    hidden = chain(trunk, inputs)")
    if program.model == "shared layer":
        lines.append('    shared = keras.layers.Dense(8, activation="tanh")')
        lines.append("    hidden = shared(shared(hidden))")
    outputs = "head(hidden)"
    if program.model == "two outputs":
        outputs = (
            '{"first": head(hidden), "second": '
            "keras.layers.Dense(2, dtype=job.head_dtype)(hidden)}"
        )
    lines.append(f"    model = {cls}(inputs, {outputs})")
    return lines
