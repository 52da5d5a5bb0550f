"""The moments of all ranks' batches on JAX, which seldom has 64 bits.

So ranks' numbers are gathered, and not added up: sums would lose digits.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ring_keras.backends.common import ranks_moments as common
from ring_keras.jax.primitive import Collective, bind

__all__ = ["RanksMoments"]


class RanksMoments(common.RanksMoments):
    """See `GlobalMoments`."""

    def _of_all_ranks(self, own: Any, part: common.Part, weight: Any) -> Any:
        return _of_all_ranks(part, own, jnp.asarray(weight, own.dtype).reshape(()))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_all_ranks(part: common.Part, own: Any, weight: Any) -> Any:
    gathered = bind(_collective(part, "allgather", common.NAME), own[None])
    counts, means, squares = gathered[:, 0], gathered[:, 1], gathered[:, 2]
    count = counts.sum(0)
    mean = (counts * means).sum(0) / jnp.maximum(count, 1.0)
    squares = (squares + counts * jnp.square(means - mean)).sum(0)
    return jnp.stack([count, mean, squares])


def _forward(part: common.Part, own: Any, weight: Any) -> tuple[Any, Any]:
    everyones = _of_all_ranks(part, own, weight)
    return everyones, (own, everyones, weight)


def _backward(part: common.Part, kept: Any, upstream: Any) -> tuple[Any, Any]:
    own, everyones, weight = kept
    upstream = _weighted(part, upstream, weight)
    return common.gradient_of_own(own, everyones, upstream), jnp.zeros_like(weight)


_of_all_ranks.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted(part: common.Part, gradient: Any, weight: Any) -> Any:
    """The ranks' gradients, times their weights, by this one's: see `divided`."""
    total = _sum_of_those_that_count(part, gradient * weight)
    return common.divided(total, weight)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _plain(part: common.Part, gradient: Any, weight: Any) -> Any:
    """The ranks' gradients: what that of `_weighted` comes to, and the other way."""
    return _sum_of_those_that_count(part, gradient)


_weighted.defvjp(
    lambda part, gradient, weight: (_weighted(part, gradient, weight), weight),
    lambda part, weight, upstream: (_plain(part, upstream, weight), 0.0 * weight),
)
_plain.defvjp(
    lambda part, gradient, weight: (_plain(part, gradient, weight), weight),
    lambda part, weight, upstream: (_weighted(part, upstream, weight), 0.0 * weight),
)


def _sum_of_those_that_count(part: common.Part, values: Any) -> Any:
    values = values if part.counts else jnp.zeros_like(values)
    return bind(_collective(part, "allreduce", f"{common.NAME}/gradient"), values)


def _collective(part: common.Part, kind: str, name: str) -> Collective:
    """Who fails before it has given up its next step."""
    return Collective(kind, name, part.communicator_id, part.size, step="begins_apart")
