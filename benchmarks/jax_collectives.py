"""Collectives of JAX by the engine, beside mpi4jax.

`mpirun -n 2 python benchmarks/jax_collectives.py`, where there are JAX, mpi4jax and the
MPI that it was compiled for. Both take turns in the same processes. Prints Markdown.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

ROUNDS = 9
# Bytes, and how many calls of what is compiled a round has.
SIZES = {4: 100, 64 << 10: 60, 1 << 20: 20, 25 << 20: 5}
# And of what is not, of which each call of mpi4jax takes a tenth of a second.
NOT_COMPILED = 3
# Collectives of one compiled function.
CHAIN = 20
MODELS: dict[str, tuple[list[int], int]] = {
    "6.3 million weights": ([784, 2048, 2048, 256, 10], 8),
    "0.2 million weights": ([784, 256, 64, 10], 40),
}

Calls = Mapping[str, Callable[[], Any]]


def in_turn(calls: Calls, times: int, barrier: Callable[[], Any]) -> dict[str, float]:
    """The median of each one's seconds a call.

    Args:
        calls: What is measured; each waits for its result.
        times: How many calls a round has.
        barrier: Of all ranks, before each round.
    """
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):  # The first compiles.
        for name, call in calls.items():
            barrier()
            start = time.perf_counter()
            for _ in range(times):
                call()
            if number:
                rounds[name].append((time.perf_counter() - start) / times)
    return {name: statistics.median(seconds) for name, seconds in rounds.items()}


def training_step(jax: Any, jit: Any, allreduce: Any, widths: list[int]) -> Any:
    """A step of SGD on a batch of 64, which gives the new weights."""
    numbers = jax.random.split(jax.random.key(1), len(widths) + 1)
    weights = [
        jax.random.normal(key, shape) * 0.01
        for key, shape in zip(numbers, itertools.pairwise(widths), strict=False)
    ]
    x = jax.random.normal(numbers[-2], (64, widths[0]))
    y = jax.random.normal(numbers[-1], (64, widths[-1]))

    def loss(weights: list[Any]) -> Any:
        hidden = x
        for weight in weights[:-1]:
            hidden = jax.nn.relu(hidden @ weight)
        return ((hidden @ weights[-1] - y) ** 2).mean()

    @jit  # type: ignore[untyped-decorator]
    def step(weights: list[Any]) -> list[Any]:
        gradients = map(allreduce, jax.grad(loss)(weights))
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    return lambda: jax.block_until_ready(step(weights))


def main() -> None:
    """Prints a line for each size, and one for each model's step."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # A core for each rank, and so one thread of XLA's.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
    import jax
    import jax.numpy as jnp
    import mpi4jax
    import numpy as np

    import ring_keras as ring
    import ring_keras.jax as ring_jax

    ring.init()
    assert (ring.rank(), ring.size()) == (world.rank, world.size)

    def by_ring(array: Any) -> Any:
        return ring_jax.allreduce(array, "sum")

    def by_mpi(array: Any) -> Any:
        return mpi4jax.allreduce(array, op=MPI.SUM, comm=world)

    # How each one's functions are compiled, and its allreduce.
    ways = {
        "ring_jax.jit": (ring_jax.jit, by_ring),
        "jax.jit": (jax.jit, by_ring),
        "mpi4jax": (jax.jit, by_mpi),
    }

    def report(what: str, calls: Calls, times: int, parts: int = 1) -> None:
        seconds = in_turn(calls, times, world.Barrier)
        if world.rank == 0:
            cells = [f"{seconds[name] / parts * 1e6:,.1f} us" for name in ways]
            *ours, theirs = seconds.values()
            cells.append(" ".join(f"**{theirs / one:.2f}**" for one in ours))
            print(f"| {what} | {' | '.join(cells)} |", flush=True)

    def waited(function: Any, array: Any) -> Callable[[], Any]:
        result = jax.block_until_ready(function(array))
        np.testing.assert_allclose(result, world.size)  # Of ones.
        return lambda: jax.block_until_ready(function(array))

    def chained(allreduce: Any) -> Any:
        def chain(array: Any) -> Any:
            for _ in range(CHAIN):  # Each takes what the one before has given.
                array = allreduce(array) / world.size
            return array * world.size

        return chain

    if world.rank == 0:
        print(
            f"| {world.size} ranks | {' | '.join(ways)} | its time over each of ours |"
        )
        print("|---|---|---|---|---|")
    for nbytes, times in SIZES.items():
        ones = jnp.ones(nbytes // 4, jnp.float32)
        size = f"allreduce of {nbytes:,} bytes"
        calls = {name: waited(one, ones) for name, (_, one) in ways.items()}
        report(f"{size}, not compiled", calls, NOT_COMPILED)
        calls = {name: waited(jit(one), ones) for name, (jit, one) in ways.items()}
        report(f"{size}, in a compiled function", calls, times)
        calls = {
            name: waited(jit(chained(one)), ones) for name, (jit, one) in ways.items()
        }
        report(f"{size}, each of {CHAIN} in one", calls, max(times // CHAIN, 3), CHAIN)
    for model, (widths, times) in MODELS.items():
        calls = {
            name: training_step(jax, jit, one, widths)
            for name, (jit, one) in ways.items()
        }
        report(f"a training step, {model}", calls, times)
    ring.shutdown()


if __name__ == "__main__":
    main()
