"""The collectives of `ring_keras.jax`, beside NumPy on all ranks' arrays."""

from __future__ import annotations

import contextlib
import functools
import importlib

import numpy as np
import pytest
from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks

pytest.importorskip("jax", reason="`make test-engines`")

import jax
import jax.numpy as jnp

pytestmark = pytest.mark.engines

SIZES = [1, 2, 3]


def ranks(worker, size, *args, env=None, **options):
    env = (
        WITHOUT_TENSORFLOW
        | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        | (env or {})
    )
    return run_ranks(worker, size, args=args, env=env, **options)


def begun():
    import ring_keras as ring
    import ring_keras.jax as ring_jax

    ring.init()
    return ring, ring_jax


def array_of(rank, shape=(6, 3), dtype="float32"):
    """Small numbers, whose sums are exact; the same for all who ask."""
    return np.random.default_rng(rank).integers(-8, 8, shape).astype(dtype)


def arrays_of(size, **options):
    return [array_of(rank, **options) for rank in range(size)]


CASES = {
    "average": lambda m, x: m.allreduce(x),
    "sum": lambda m, x: m.allreduce(x, "sum"),
    "min": lambda m, x: m.allreduce(x, "min"),
    "product": lambda m, x: m.allreduce(x, "product"),
    "broadcast": lambda m, x: m.broadcast(x, m.size - 1),
    "allgather": lambda m, x: m.allgather(x),
    "reducescatter": lambda m, x: m.reducescatter(x, "sum"),
    "mean_of_rows": lambda m, x: m.reducescatter(x),
    "alltoall": lambda m, x: m.alltoall(x),
}
LINEAR = [name for name in CASES if name not in ("min", "product")]


def expected_of(name, arrays, rank):
    size = len(arrays)
    part = slice(6 // size * rank, 6 // size * (rank + 1))
    total = sum(arrays)
    return {
        "average": lambda: total / size,
        "sum": lambda: total,
        "min": lambda: functools.reduce(np.minimum, arrays),
        "product": lambda: functools.reduce(np.multiply, arrays),
        "broadcast": lambda: arrays[-1],
        "allgather": lambda: np.concatenate(arrays),
        "reducescatter": lambda: total[part],
        "mean_of_rows": lambda: total[part] / size,
        "alltoall": lambda: np.concatenate([a[part] for a in arrays]),
    }[name]()


class _Module:
    """Those of ring_keras.jax, and the number of ranks."""

    def __init__(self, module, size):
        self.size = size
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, name)


def values_worker():
    """Each of CASES outside of `jit` and in it, in `vmap`, `scan` and `cond`."""
    ring, ring_jax = begun()
    module = _Module(ring_jax, ring.size())
    x = jnp.asarray(array_of(ring.rank()))
    found = {}
    for name, case in CASES.items():

        def call(x, case=case):
            return case(module, x)

        @jax.jit
        def scanned(x, call=call):
            def body(carry, _):
                return carry + 1, call(x * (carry + 1))

            return jax.lax.scan(body, 0, None, length=3)[1]

        @jax.jit
        def chosen(x, flag, call=call):
            return jax.lax.cond(flag, call, lambda x: call(2 * x), x)

        batched = jnp.stack([x, 2 * x, -x], 1)
        found[name] = (
            call(x),
            jax.jit(call)(x),
            jax.vmap(call, in_axes=1, out_axes=1)(batched),
            jax.jit(jax.vmap(call, in_axes=1))(batched),
            scanned(x),
            chosen(x, True),
            chosen(x, False),
        )
    import sys

    assert "keras" not in sys.modules
    return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize("size", SIZES)
def test_values_are_those_of_numpy(size):
    arrays = arrays_of(size)
    for rank, found in enumerate(ranks(values_worker, size)):
        for name, results in found.items():
            plain, jitted, batched, first, scanned, taken, other = results
            of = functools.partial(expected_of, name, rank=rank)
            examples = [of([k * a for a in arrays]) for k in (1, 2, -1)]
            close = {"rtol": 1e-6, "err_msg": name}
            np.testing.assert_allclose(plain, of(arrays), **close)
            np.testing.assert_array_equal(jitted, plain)
            np.testing.assert_allclose(batched, np.stack(examples, 1), **close)
            np.testing.assert_allclose(first, np.stack(examples), **close)
            steps = [of([k * a for a in arrays]) for k in (1, 2, 3)]
            np.testing.assert_allclose(scanned, np.stack(steps), **close)
            np.testing.assert_array_equal(taken, plain)
            np.testing.assert_allclose(other, examples[1], **close)


def derivatives_worker():
    """Of the sum of squares of what each of LINEAR gives, weighted by rank."""
    ring, ring_jax = begun()
    module = _Module(ring_jax, ring.size())
    x = jnp.asarray(array_of(ring.rank()))
    found = {}
    for name in LINEAR:

        def loss(x, case=CASES[name]):
            return (1 + ring.rank()) * jnp.square(case(module, x)).sum()

        def linear(x, case=CASES[name]):
            return case(module, x)

        found[name] = (
            jax.grad(loss)(x),
            jax.jit(jax.grad(loss))(x),
            jax.jit(lambda x: jax.jvp(linear, (x,), (2 * x,)))(x),
            jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([x, 3 * x])),
        )
    if ring.rank():  # What overflows on one rank is no number of the others'.
        sent = jax.grad(lambda x: ring_jax.broadcast(x, 0).sum() * jnp.inf)(x)
    else:
        sent = jax.grad(lambda x: ring_jax.broadcast(x, 0).sum() * 0)(x) * 0
    assert ring.rank() == 0 or not np.asarray(sent).any()
    nonlinear = None
    try:
        jax.grad(lambda x: ring_jax.allreduce(x, "max").sum())(x)
    except NotImplementedError as error:
        nonlinear = str(error)
    return jax.tree.map(np.asarray, found), nonlinear


def gradient_of(name, arrays, rank):
    """By the rules of the manual: docs/collectives.md."""
    size = len(arrays)
    rows = 6 // size
    upstream = [
        2 * (1 + r) * np.asarray(expected_of(name, arrays, r)) for r in range(size)
    ]
    total = sum(upstream)
    if name == "average":
        return total / size
    if name == "sum":
        return total
    if name == "broadcast":
        return total if rank == size - 1 else 0 * total
    if name == "allgather":
        return total[6 * rank : 6 * rank + 6]
    if name == "reducescatter":
        return np.concatenate(upstream)
    if name == "mean_of_rows":
        return np.concatenate(upstream) / size
    return np.concatenate([u[rows * rank : rows * rank + rows] for u in upstream])


@pytest.mark.parametrize("size", SIZES)
def test_derivatives_are_collectives(size):
    arrays = arrays_of(size)
    for rank, (found, nonlinear) in enumerate(ranks(derivatives_worker, size)):
        assert nonlinear.startswith("[RK412]")
        for name, (plain, jitted, (value, tangent), batched) in found.items():
            expected = gradient_of(name, arrays, rank)
            close = {"rtol": 1e-6, "err_msg": name}
            np.testing.assert_allclose(plain, expected, **close)
            np.testing.assert_allclose(jitted, expected, **close)
            result = expected_of(name, arrays, rank)
            np.testing.assert_allclose(value, result, **close)
            np.testing.assert_allclose(tangent, 2 * result, **close)
            np.testing.assert_allclose(batched, [expected, 3 * expected], **close)


def many_worker():
    """Forty collectives that need nothing of each other, of many sizes, in one step."""
    ring, ring_jax = begun()
    rank = ring.rank()

    @jax.jit
    def step(arrays):
        tree = {
            "reduced": [ring_jax.allreduce(a, "sum", name="same") for a in arrays],
            "sent": [ring_jax.broadcast(a, 1, name=f"{len(a)}") for a in arrays[::-1]],
        }
        return tree, ring_jax.allreduce({"a": arrays[0], "b": (arrays[1],)}, "max")

    arrays = [
        jnp.full((rows,), rank + rows, dtype)
        for rows in (1, 3, 4, 70_000, 5)
        for dtype in ("float32", "int32", "bfloat16", "uint8")
    ]
    for _ in range(20):
        found = step(arrays)
    reduced, sent = found[0]["reduced"], found[0]["sent"]
    for array, total in zip(arrays, reduced, strict=True):
        own = jnp.full_like(array, len(array))
        np.testing.assert_array_equal(total, (own + own + 1).astype(array.dtype))
    for array, got in zip(arrays[::-1], sent, strict=True):
        np.testing.assert_array_equal(got, jnp.full_like(array, len(array) + 1))
    return [float(found[1]["a"][0]), int(found[1]["b"][0][0])]


def test_many_in_one_step_keep_their_order():
    assert ranks(many_worker, 2) == [[2.0, 2]] * 2


def order_worker():
    """Collectives that need nothing of each other, and whose data come apart in time.

    Where ranks have other numbers of rows, XLA has reasons for other orders.
    """
    ring, ring_jax = begun()
    rank = ring.rank()
    weight = jnp.eye(256) / 2
    sums = jax.jit(lambda value: ring_jax.allreduce(value, "sum", name="same"))

    def slow(rows, value):
        hidden = jnp.full((rows, 256), value)
        for _ in range(6):
            hidden = jnp.tanh(hidden @ weight) * 2
        return hidden.mean(0)[0]

    def helpers(rows):
        """Called in functions that are compiled by themselves."""
        return [sums(slow(n, 0.0) + k) for k, n in enumerate(rows)]

    quick = ring_jax.jit(lambda value: ring_jax.allreduce(value, "sum", name="same"))

    def nested(rows):
        """What begins quickly by itself is part of another."""
        return [quick(slow(n, 0.0) + k) for k, n in enumerate(rows)]

    def branches(rows):
        return [
            jax.lax.cond(k % 2 == 0, sums, lambda x: 2 * sums(x), slow(n, 0.0) + k)
            for k, n in enumerate(rows)
        ]

    def losses(rows):
        """As of two models that train each other; and what is not used."""

        def loss(weights, k, n):
            shared = ring_jax.allreduce(weights + slow(n, 0.0), "sum", name="loss")
            return k * jnp.square(shared).sum()

        taken = []
        for k, n in enumerate(rows):
            ring_jax.allreduce(slow(n, 1.0), "sum", name="loss")
            taken.append(jax.grad(loss)(jnp.float32(1), k, n))
        return taken

    def again(rows):
        """Backward computes the forward collectives once more."""
        part = jax.checkpoint(
            lambda x, y: jnp.square(sums(x)) + jnp.square(sums(y)) + sums(x * y)
        )
        first, second = slow(rows[0], 0.0) + 1, slow(rows[1], 0.0) + 2
        return list(jax.grad(part, (0, 1))(first, second))

    def second(rows):
        value = lambda x: jnp.square(sums(x)) * x  # noqa: E731
        start = slow(rows[0], 0.0) + 1.0
        return [jax.grad(jax.grad(value))(start), *jax.jvp(value, (start,), (1.0,))]

    found = {}
    for case in (helpers, nested, branches, losses, again, second):
        for compiled in (jax.jit, ring_jax.jit):
            rows = tuple(1500 if k % 2 == rank else 4 for k in range(4))
            function = compiled(lambda case=case, rows=rows: case(rows))
            results = [function() for _ in range(3)]
            name = f"{case.__name__}, {compiled.__module__}"
            found[name] = np.asarray(results, np.float64)
    return found


@pytest.mark.parametrize("threads", ["1", "3"])
def test_all_ranks_keep_the_order_of_the_program(threads):
    first, second = ranks(order_worker, 2, env={"PJRT_NPROC": threads})

    expected = {
        "helpers": [0, 2, 4, 6],
        "nested": [0, 2, 4, 6],
        "branches": [0, 4, 4, 12],
        # d/dw of k * (2w)^2 with the sum's own gradient: summed over both ranks.
        "losses": [8 * k for k in range(4)],
        # x = 1, y = 2 on both: s(x)^2 + s(y)^2 + s(xy), and sums go back as sums.
        "again": [8 + 4, 16 + 2],
        # s(x)^2 x, at x = 1: the gradient s(x)^2 + s(2 s(x) x) has three terms in s.
        "second": [8 + 8 + 8, 4, 12],
    }
    for name, results in first.items():
        np.testing.assert_array_equal(results, second[name], err_msg=name)
        for result in results:
            wanted = expected[name.partition(",")[0]]
            np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=name)


def errors_worker():
    """Of shapes, and of a rank that goes; in what is compiled and outside of it."""
    ring, ring_jax = begun()
    rank = ring.rank()
    found = []

    def note(call):
        try:
            jax.block_until_ready(call())
        except Exception as error:
            found.append((type(error).__name__, str(error)))

    note(lambda: ring_jax.allreduce(jnp.ones(2 + rank)))
    compiled = jax.jit(lambda x: ring_jax.allreduce(x, name="compiled"))

    def translated():
        with ring.errors.translated():
            return jax.block_until_ready(compiled(jnp.ones(2 + rank)))

    note(translated)
    note(lambda: compiled(jnp.ones(2 + rank)))
    note(lambda: ring_jax.reducescatter(jnp.ones(3)))
    note(lambda: ring_jax.allreduce(jnp.ones(3, int)))
    note(lambda: ring_jax.broadcast(jnp.ones(3), 7))
    note(lambda: ring.callbacks.Elastic())
    found.append(("value", str(float(compiled(jnp.full(5, 1.0 + rank))[0]))))
    if rank == 1:
        ring.shutdown()
        note(lambda: compiled(jnp.ones(2 + rank)))
        return found
    note(lambda: ring_jax.allreduce(jnp.ones(2)))
    note(translated)
    return found


def test_errors_name_ranks_and_codes():
    first, second = ranks(errors_worker, 2)

    for found in (first, second):
        kinds = [kind for kind, _ in found]
        assert kinds[:3] == [
            "RankMismatchError",
            "RankMismatchError",
            "JaxRuntimeError",
        ]
        assert kinds[3:6] == ["ValueError"] * 3, found
        codes = [text.partition("]")[0] for _, text in found]
        assert codes[3:5] == ["[RK403", "[RK402"]
        assert codes[6] == "[RK137"
        for _, text in found[:3]:
            assert "shape differs across ranks" in text
        assert found[7] == ("value", "1.5")  # One that has failed is forgotten.
    assert [kind for kind, _ in first[8:]] == ["PeerLostError"] * 2, first
    assert "rank 1" in first[8][1]
    assert "NotInitializedError" in str(second[8])


# What rank 1 alone gives that is refused, and the others not.
REFUSED = {
    "reducescatter": lambda m, r: m.reducescatter(jnp.ones(2 + r)),
    "alltoall": lambda m, r: m.alltoall(jnp.ones(2 + r)),
    "allreduce": lambda m, r: m.allreduce(
        {"a": jnp.ones(2), "b": jnp.ones(2, int if r else "float32")}
    ),
    "allgather": lambda m, r: m.allgather(jnp.ones(2, complex if r else "float32")),
    "broadcast": lambda m, r: m.broadcast(jnp.ones(2), 7 if r else 0),
}


def refused_worker(compiles):
    """Each of REFUSED; and a call by the same name, which meets the others' next."""
    ring, ring_jax = begun()
    rank = ring.rank()
    found = {}
    for name, call in REFUSED.items():
        run = functools.partial(call, ring_jax, rank)
        error = None
        try:
            with ring.errors.translated():
                jax.block_until_ready((jax.jit(run) if compiles else run)())
        except Exception as caught:
            error = caught
        value = CASES[name if name != "allreduce" else "average"](
            _Module(ring_jax, ring.size()), jnp.full(2, 1.0 + rank)
        )
        found[name] = type(error).__name__, str(error), np.asarray(value).tolist()
    return found


@pytest.mark.parametrize("compiles", [False, True])
def test_all_hear_of_what_one_refuses(compiles):
    first, second = ranks(refused_worker, 2, compiles, timeout_s=60)

    for name in REFUSED:
        kind, text, _ = second[name]
        assert kind in ("ValueError", "TypeError"), text
        told_kind, told, _ = first[name]
        assert told_kind == "RankMismatchError", told
        assert "[RK310]" in told and f"'{name}': rank 1 cannot take part" in told
        assert text.partition("]")[0] in told
    values = [[3.0], [1.0, 2.0], [1.5, 1.5], [1.0, 1.0, 2.0, 2.0], [2.0, 2.0]]
    for found in (first, second):
        assert [found[name][2] for name in REFUSED] == values


def handled_worker():
    """An error in a computation that takes its time; what follows is as ever."""
    ring, ring_jax = begun()
    rank = ring.rank()
    square = jnp.ones((1500, 1500)) / 1500

    @functools.partial(jax.jit, static_argnums=1)
    def step(x, rows):
        return ring_jax.allreduce((x @ x @ x)[:rows], "sum")

    try:
        with ring.errors.translated():
            jax.block_until_ready(step(square, 2 + rank))
    except ring.RankMismatchError:
        handled = True
    found = [float(step(square, 3)[0, 0]) for _ in range(2)]

    assert "ring_keras.run" in ring_jax.jit(ring_jax.allreduce).lower(square).as_text()

    @functools.partial(ring_jax.jit, static_argnames="how")
    def named(x, *, by, how):
        return ring_jax.allreduce({"x": x * by["k"]}, how)

    found.append(float(named(jnp.float32(rank + 1), by={"k": 2.0}, how="max")["x"]))
    with jax.disable_jit():
        found.append(float(ring_jax.jit(ring_jax.allreduce)(jnp.float32(rank))))
    # Handled, and not forgotten: nothing is printed of it in the end.
    with contextlib.suppress(Exception):
        jax.block_until_ready(step(square, 2 + rank))
    return handled, found


def test_what_follows_a_handled_error_is_as_ever():
    outcomes = ranks(handled_worker, 2, check=False)

    for outcome in outcomes:
        handled, found = outcome.result
        assert handled
        np.testing.assert_allclose(found, [2 / 1500, 2 / 1500, 4, 0.5], rtol=1e-5)
        assert "Traceback" not in outcome.stderr


def sets_worker():
    """Ranks 1 and 2 by themselves, and the names at the top."""
    ring, ring_jax = begun()
    pair = ring.add_process_set([1, 2])
    rank = ring.rank()
    total = float(ring.allreduce(jnp.float32(rank), op=ring.Sum))
    if rank:
        own = ring_jax.allreduce(jnp.float32(rank), op=ring.Sum, process_set=pair)
        sent = ring_jax.broadcast(jnp.float32(rank), 2, process_set=pair)
        return total, float(own), float(sent)
    return total, 0.0, 0.0


def test_process_sets():
    assert ranks(sets_worker, 3) == [(3.0, 0.0, 0.0), (3.0, 3.0, 2.0), (3.0, 3.0, 2.0)]


def other_version_worker():
    """Of JAX, whose private names may have another meaning."""
    import ring_keras as ring

    jax.__version_info__ = (0, 9, 2)
    try:
        importlib.import_module("ring_keras.jax")
    except ring.RingKerasError as error:
        return error.code
    return None


def test_another_version_of_jax_is_refused():
    assert ranks(other_version_worker, 1) == ["RK665"]
