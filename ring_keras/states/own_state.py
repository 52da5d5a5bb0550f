"""What a step of a rank without data must leave as it was."""

from __future__ import annotations

from typing import Any

import keras

from ring_keras import keras_internals as internals

__all__ = ["own_state"]


def own_state(model: keras.Model) -> list[Any]:
    """Moving statistics, seeds, metrics, and what else layers keep of their batches.

    Without moving statistics that all ranks have in common: those are of all batches.
    And without what follows the trained weights: frozen ones that a step changes, and
    the vectors of spectral normalization.
    """
    common = [
        *internals.synchronized_statistics(model),
        *internals.spectral_vectors(model),
        *internals.frozen_weights(model),
    ]
    ids = set(map(id, common))
    own = [one for one in model.non_trainable_variables if id(one) not in ids]
    return [*own, *model.metrics_variables]
