"""Collectives of JAX: in what it compiles, and outside of it.

Examples:
    >>> import ring_keras.jax as ring_jax
    >>> @ring_jax.jit
    ... def step(weights, batch):
    ...     gradients = jax.grad(loss)(weights, batch)
    ...     return weights - 0.1 * ring_jax.allreduce(gradients)

The ranks are those of `ring_keras.init()`. Keras need not be there; where it computes
by JAX, `ring_keras.allreduce` and the others are these functions.
"""

import jax

from ring_keras.config import prefer_keras_backend

# Keras need not be there. If it is, it may say otherwise.
prefer_keras_backend("jax", "as ring_keras.jax was imported")

from ring_keras.errors import RingKerasError

# With another one collectives hang, or fail as they are traced.
if jax.__version_info__[:2] != (0, 10):
    raise RingKerasError(
        "[RK665] ring_keras keeps the order of collectives by private names of JAX "
        f"0.10, and JAX {jax.__version__} is installed. Run `pip install "
        "'jax>=0.10,<0.11'`."
    )

from ring_keras.jax.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    reducescatter,
)
from ring_keras.jax.order import jit

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "jit", "reducescatter"]
