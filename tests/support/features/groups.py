"""All features, by the heading they have in the table."""

from __future__ import annotations

from support.features import Feature, callbacks, fitting, layers, metrics, optimizers

GROUPS: dict[str, list[Feature]] = {
    "Optimizers": optimizers.SHIPPED,
    "Options of optimizers": optimizers.OPTIONS,
    "Copies of a compiled model": optimizers.COPIES,
    "Ways to train": fitting.FEATURES,
    "Batch normalization": layers.FEATURES,
    "Keras's callbacks": callbacks.KERAS,
    "Our callbacks and schedules": callbacks.OURS,
    "Metrics": metrics.FEATURES,
}
