"""The models of Horovod's published figures, from Keras.

The images per second of one Tesla P100 with TensorFlow, batch 64, float32,
synthetic data, are those that TensorFlow published in May 2017
(tensorflow/docs_src/performance/benchmarks.md, "Training synthetic data"):
Inception V3 142, ResNet-50 219, ResNet-152 91.8, VGG16 154. ResNet-101 is not
among them: 129 is interpolated between ResNet-50 and ResNet-152 by floating-point
operations. BERT-large is that of Devlin et al. 2018 with the heads that its training
uses; NVIDIA measured 49.97 sentences per second on one Tesla V100 with TensorFlow,
float32, 128 tokens each, batch 32 (DeepLearningExamples,
TensorFlow2/LanguageModeling/BERT, February 2021). A third of a step is taken for
forward.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.scaling.step import Model, Variable

__all__ = ["BATCH", "IMAGES_PER_S", "bert_large", "convolutional_models"]

BATCH = 64
IMAGES_PER_S = {
    "ResNet50": 219.0,
    "ResNet101": 129.0,
    "InceptionV3": 142.0,
    "VGG16": 154.0,
}
_LAYERS, _WIDTH, _VOCABULARY, _POSITIONS = 24, 1024, 30522, 512
_SENTENCES, _SENTENCES_PER_S = 32, 49.97
_FORWARD_SHARE = 1 / 3


def convolutional_models() -> dict[str, Model]:
    """All of `IMAGES_PER_S`, by their names; imports Keras."""
    import keras

    models = {}
    for name, images_per_s in IMAGES_PER_S.items():
        network = getattr(keras.applications, name)(weights=None)
        step_s = BATCH / images_per_s
        models[name] = _model(name, _variables(network), step_s)
    return models


def bert_large() -> Model:
    """BERT-large in the first phase of its training: 336 million weights."""
    # A kernel is used for each token, and for the two layers after the encoder for
    # some of them: what those compute is left out.
    variables = [
        Variable(size, 0.0)
        for size in (
            *(_VOCABULARY * _WIDTH, _POSITIONS * _WIDTH, 2 * _WIDTH),
            *(_WIDTH, _WIDTH),
        )
    ]
    for _ in range(_LAYERS):
        for rows, columns in (
            *[(_WIDTH, _WIDTH)] * 4,
            *((_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH)),
        ):
            kernel = rows * columns
            variables += [Variable(kernel, kernel), Variable(columns, 0.0)]
        variables += [Variable(_WIDTH, 0.0)] * 4
    # The pooled first token, whether a sentence follows, and the words left out.
    variables += [
        Variable(size, 0.0)
        for size in (
            *(_WIDTH**2, _WIDTH, 2 * _WIDTH, 2),
            *(_WIDTH**2, _WIDTH, _WIDTH, _WIDTH, _VOCABULARY),
        )
    ]
    return _model("BERT-large", variables, _SENTENCES / _SENTENCES_PER_S)


def _model(name: str, variables: list[Variable], step_s: float) -> Model:
    return Model(
        name=name,
        variables=tuple(variables),
        forward_s=step_s * _FORWARD_SHARE,
        backward_s=step_s * (1 - _FORWARD_SHARE),
    )


def _variables(network: Any) -> list[Variable]:
    variables = []
    for layer in network.layers:
        work = _multiplications(layer)
        for variable in layer.trainable_variables:
            variables.append(Variable(math.prod(variable.shape), work))
            work = 0.0
    return variables


def _multiplications(layer: Any) -> float:
    """Of a forward pass of one image; backward has about twice as many."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None:
        return 0.0
    places = math.prod(layer.output.shape[1:-1])  # 1 for a dense layer.
    return float(math.prod(kernel.shape) * places)
