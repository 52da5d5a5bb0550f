"""What every rank checks of compiled collectives, on CPUs and on a GPU."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

from ring_keras import _native
from support.engine_only import rank_and_size
from support.gpu_cases import FLOATS, INTEGERS
from support.jax_calls import Calls
from support.tensors import DTYPES, Array, ops_of, reduced, small_values


def _values(shape: tuple[int, ...], dtype: str = "float32") -> list[Array]:
    """Of every rank; the own is that of number `rank`."""
    return [small_values(rank, shape, dtype) for rank in range(rank_and_size()[1])]


def check_every_type() -> None:
    """Those of NCCL's on a GPU: what else there is TensorFlow's kernel converts."""
    import jax

    rank, _ = rank_and_size()
    on_gpu = jax.default_backend() != "cpu"
    for dtype in [*INTEGERS, *FLOATS] if on_gpu else DTYPES:
        ops = [op for op in ops_of(dtype) if op != "average"]

        @jax.jit
        def reduce(tensor: Any, ops: list[str] = ops) -> list[Any]:
            calls = Calls()
            return [
                calls.run("allreduce", [tensor], name=f"run/{op}", op=op)[0]
                for op in ops
            ]

        for shape in ((), (3,), (257, 33)):
            values = _values(shape, dtype)
            for op, result in zip(ops, reduce(values[rank]), strict=True):
                np.testing.assert_array_equal(result, reduced(values, op))


def check_every_kind() -> None:
    import jax

    rank, size = rank_and_size()
    values = _values((2 * size, 3))

    @jax.jit
    def run(tensor: Any) -> list[Any]:
        calls = Calls()
        (sent,) = calls.run("broadcast", [tensor], name="kind/b", root=size - 1)
        (all_rows,) = calls.run("allgather", [tensor], 2 * size * size, name="kind/g")
        (own,) = calls.run("reduce_scatter", [tensor], 2, name="kind/r", op="sum")
        (traded,) = calls.run("alltoall", [tensor], 2 * size, name="kind/a")
        calls.run("barrier", [], name="kind/z")
        return [sent + 0 * calls.token, all_rows, own, traded]

    sent, all_rows, own, traded = run(values[rank])
    np.testing.assert_array_equal(sent, values[-1])
    np.testing.assert_array_equal(all_rows, np.concatenate(values))
    mine = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(own, reduced(values, "sum")[mine])
    np.testing.assert_array_equal(traded, np.concatenate([v[mine] for v in values]))


def check_between_start_and_wait() -> None:
    """What is computed before, between and after, and inputs that are used later."""
    import jax
    import jax.numpy as jnp

    rank, _ = rank_and_size()
    values = _values((1000, 33))

    @jax.jit
    def step(x: Any) -> list[Any]:
        calls = Calls()
        first = calls.start([x * 2, x[:7] + 1], name="two/first", op="sum")
        # The same memory twice, and one that is needed as it was.
        second = calls.start([x, x, jnp.ones(5, x.dtype)], name="two/second", op="max")
        between = jnp.tanh(x @ x.T).sum()
        doubled, few = calls.wait(first)
        once, twice, ones = calls.wait(second)
        return [doubled * 3, few, once, twice, ones, x + 1, between]

    total, largest = reduced(values, "sum"), reduced(values, "max")
    for _ in range(5):
        doubled, few, once, twice, ones, after, between = step(values[rank])
        np.testing.assert_array_equal(doubled, total * 6)
        plus_one = [value[:7] + 1 for value in values]
        np.testing.assert_array_equal(few, reduced(plus_one, "sum"))
        np.testing.assert_array_equal(once, largest)
        np.testing.assert_array_equal(twice, largest)
        np.testing.assert_array_equal(ones, np.ones(5))
        np.testing.assert_array_equal(after, values[rank] + 1)
        assert np.isfinite(between)


def check_loops() -> None:
    import jax
    from jax import lax

    rank, size = rank_and_size()
    values = _values((500,))

    @functools.partial(jax.jit, static_argnames="steps")
    def train(x: Any, steps: int) -> Any:
        def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            token, weights = carry
            calls = Calls(token)
            pending = calls.start([weights], name="loop/start", op="average")
            (mean,) = calls.wait(pending)
            (total,) = calls.run("allreduce", [mean], name="loop/run", op="sum")
            return calls.token, total / size + 1

        return lax.fori_loop(0, steps, body, (Calls().token, x))[1]

    mean = np.mean(values, axis=0)
    for steps in (1, 10):
        result = train(values[rank], steps)
        np.testing.assert_allclose(result, mean + steps, rtol=1e-5)


def check_donated() -> None:
    """The engine may get the memory of the argument itself."""
    import jax
    import jax.numpy as jnp

    rank, _ = rank_and_size()
    values = _values((100_000,))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(x: Any) -> Any:
        calls = Calls()
        (result,) = calls.wait(calls.start([x], name="donated", op="sum"))
        return result

    for _ in range(20):
        result = step(jnp.asarray(values[rank]))
        np.testing.assert_array_equal(result, reduced(values, "sum"))


def check_factors() -> None:
    """Those that are known when it compiles, and those that only the run knows."""
    import jax

    rank, size = rank_and_size()
    values = _values((99,))
    weights = [float(other + 1) for other in range(size)]
    average = np.average(values, 0, weights)

    @jax.jit
    def run(x: Any, factor: Any, weight: Any) -> list[Any]:
        calls = Calls()
        (known,) = calls.run(
            "allreduce", [x], name="factor/known", op="sum", prescale=0.5, postscale=4.0
        )
        (late,) = calls.run(
            "allreduce", [x], name="factor/late", op="sum", postscale=factor
        )
        pending = calls.start([x], name="factor/weight", op="average", weight=weight)
        return [known, late, *calls.wait(pending)]

    @jax.jit
    def scale_bool(x: Any) -> Any:
        return Calls().run(
            "allreduce", [x], name="factor/bool", op="max", prescale=0.5, is_bool=1
        )

    with pytest.raises(Exception, match="bool cannot be scaled"):
        jax.block_until_ready(scale_bool(np.ones(3, np.int32)))

    known, late, weighted = run(values[rank], np.float64(3), weights[rank])
    np.testing.assert_array_equal(known, reduced(values, "sum") * 2)
    np.testing.assert_array_equal(late, reduced(values, "sum") * 3)
    np.testing.assert_allclose(weighted, average, rtol=1e-6)


def check_other_memory() -> None:
    """Without aliases XLA gives each its own: an error, not what lies there."""
    import jax

    values = _values((1000,))[0]

    @jax.jit
    def at_the_start(x: Any) -> Any:
        calls = Calls()
        pending = calls.start([x], aliased=False, name="memory/start", op="sum")
        return calls.wait(pending)

    @jax.jit
    def at_the_wait(x: Any) -> Any:
        calls = Calls()
        number, token, started = calls.start([x], name="memory/wait", op="sum")
        return [*calls.wait((number, token, [x])), *started]

    for function in (at_the_start, at_the_wait):
        with pytest.raises(Exception, match=r"INTERNAL: RingKerasError.*memory"):
            jax.block_until_ready(function(values))
        _native.barrier("memory/next")
    check_donated()


def check_from_run_to_run() -> None:
    """What departs in one run arrives in another, and once."""
    import jax

    rank, size = rank_and_size()
    values = _values((1000, 33))
    average, rows = (_native.new_departure_slot() for _ in range(2))

    @jax.jit
    def begin(x: Any, weight: Any) -> Any:
        calls = Calls()
        calls.depart(
            *("allreduce", [x * 2, x[:7]]),
            **{"name": "on/average", "slot": average, "op": "average"},
            weight=weight,
        )
        return calls.depart("allgather", [x], name="on/rows", slot=rows)

    @jax.jit
    def end() -> list[Any]:
        like = jax.ShapeDtypeStruct
        calls = Calls()
        shapes = [like((1000, 33), "float32"), like((7, 33), "float32")]
        found = calls.arrive(shapes, name="on/average", slot=average)
        shapes = [like((1000 * size, 33), "float32")]
        return found + calls.arrive(shapes, name="on/rows", slot=rows)

    for _ in range(3):
        jax.block_until_ready(begin(values[rank], np.float64(1)))
        doubled, few, gathered = end()
        mean = np.mean(values, axis=0)
        np.testing.assert_allclose(doubled, 2 * mean, rtol=1e-6)
        np.testing.assert_allclose(few, mean[:7], rtol=1e-6)
        np.testing.assert_array_equal(gathered, np.concatenate(values))
    with pytest.raises(Exception, match="RK820"):
        jax.block_until_ready(end())


def check_mismatch() -> None:
    """The same error on all ranks, and the job goes on."""
    import jax

    rank, size = rank_and_size()

    @jax.jit
    def run(x: Any) -> Any:
        calls = Calls()
        return calls.wait(calls.start([x], name="mismatch", op="sum"))

    if size > 1:
        with pytest.raises(Exception, match="RankMismatchError: ") as info:
            jax.block_until_ready(run(np.ones(3 + rank, np.float32)))
        assert re.search("mismatch", str(info.value))
    check_donated()


CHECKS = [
    check_every_type,
    check_every_kind,
    check_between_start_and_wait,
    check_loops,
    check_donated,
    check_factors,
    check_other_memory,
    check_from_run_to_run,
    check_mismatch,
]
