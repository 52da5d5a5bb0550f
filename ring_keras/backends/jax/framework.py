"""What training needs of JAX."""

from __future__ import annotations

import jax
import keras

from ring_keras.backends.common.framework import Framework
from ring_keras.backends.jax.hook import JaxHook
from ring_keras.backends.jax.ranks_fit import JaxFit, make_train_functions_anew
from ring_keras.backends.jax.step_rates import JaxRates
from ring_keras.errors import RingKerasError
from ring_keras.jax.library import library

__all__ = ["FRAMEWORK"]


def _prepare() -> None:
    if jax.default_backend() != "cpu":
        raise RingKerasError(
            f"[RK661] JAX computes on {jax.default_backend()}. With Keras's back end "
            "jax gradients are averaged in host memory: set JAX_PLATFORMS=cpu before "
            "JAX is imported."
        )
    library()
    make_train_functions_anew(keras.Model)


FRAMEWORK = Framework(JaxHook, JaxFit, JaxRates, _prepare)
