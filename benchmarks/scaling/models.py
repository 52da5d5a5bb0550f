"""The models of Horovod's published figures, from Keras.

The images per second of one Tesla P100 with TensorFlow, batch 64, float32,
synthetic data, are those that TensorFlow published in May 2017
(tensorflow/docs_src/performance/benchmarks.md, "Training synthetic data"):
Inception V3 142, ResNet-50 219, ResNet-152 91.8, VGG16 154. ResNet-101 is not
among them: 129 is interpolated between ResNet-50 and ResNet-152 by floating-point
operations. A third of a step is taken for forward.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.scaling.step import Model, Variable

__all__ = ["BATCH", "IMAGES_PER_S", "horovod_models"]

BATCH = 64
IMAGES_PER_S = {"ResNet101": 129.0, "InceptionV3": 142.0, "VGG16": 154.0}
_FORWARD_SHARE = 1 / 3


def horovod_models() -> list[Model]:
    """ResNet-101, Inception V3 and VGG-16; imports Keras."""
    import keras

    models = []
    for name, images_per_s in IMAGES_PER_S.items():
        network = getattr(keras.applications, name)(weights=None)
        step_s = BATCH / images_per_s
        models.append(
            Model(
                name=name,
                variables=tuple(_variables(network)),
                forward_s=step_s * _FORWARD_SHARE,
                backward_s=step_s * (1 - _FORWARD_SHARE),
            )
        )
    return models


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
