"""Ranks that train apart meet on thin wires, in fragments, and while they go on."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.far_apart import (
    INNER,
    Arrays,
    Reference,
    batches_of,
    rank_dataset,
    step_of,
    thin_average,
)
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras.ops.step import one_step
from ring_keras.optimizers.wires import average_thinly, thin_wire


def two_fits_worker(wire, **compiled):
    """The weights after each of two `fit`s, and the residuals."""
    model = training.build(1)
    optimizer = ring.DiLoCo(INNER["sgd"](), sync_every=3, wire=wire)
    weights = []
    for _ in range(2):
        model.compile(optimizer, "binary_crossentropy", **compiled)
        model.fit(rank_dataset(8), verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return *weights, [np.asarray(one) for one in optimizer.residuals]


@pytest.mark.parametrize(
    ("size", "wire", "compiled"),
    [
        (2, "int8", {}),
        pytest.param(3, "int8", {}, marks=pytest.mark.slow),
        pytest.param(2, "top-k", {}, marks=pytest.mark.slow),
        pytest.param(2, "int8", {"jit_compile": True}, marks=pytest.mark.slow),
        pytest.param(4, "int8", {"run_eagerly": True}, marks=pytest.mark.slow),
        pytest.param(3, "top-k", {"jit_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_thin_wires_are_the_algorithm(rank_pool, size, wire, compiled):
    """What they leave out arrives later, also in a second `fit`."""
    worker = functools.partial(two_fits_worker, **compiled)
    results = rank_pool(size).run(worker, args=(wire,))

    weights, seconds, left = zip(*results, strict=True)
    assert len({training.as_bytes(of_rank) for of_rank in seconds}) == 1
    reference = Reference(size, "sgd", "diloco", 3, wire)
    reference.epoch(8)
    assert training.largest_difference(weights[0], reference.common) < 1e-6
    reference.epoch(8)
    assert training.largest_difference(seconds[0], reference.common) < 1e-6
    for ours, theirs in zip(left, reference.left, strict=True):
        assert training.largest_difference(ours, theirs) < 1e-6


def two_wires_worker():
    """The weights after `fit`s with two wires."""
    ring.init()
    return [two_fits_worker(wire)[0] for wire in ("int8", "bfloat16")]


@pytest.mark.slow
def test_wires_between_encrypted_hosts():
    hosts = [
        {"RING_KERAS_HOST_NAME": host, "RING_KERAS_ENCRYPT": "1"} for host in ("a", "b")
    ]
    first, second = run_ranks(two_wires_worker, 2, env=hosts)

    assert [*map(training.as_bytes, first)] == [*map(training.as_bytes, second)]
    for weights, exact, least, most in (
        (first[0], "int8", 0, 1e-6),
        (first[1], "float32", 1e-6, 0.01),
    ):
        reference = Reference(2, "sgd", "diloco", 3, exact)
        reference.epoch(8)
        assert least <= training.largest_difference(weights, reference.common) < most


WIRE_SHAPES = [(700, 3), (), (5,), (2, 2, 257)]


def values_of(rank: int, meeting: int) -> Arrays:
    """What a rank has to send: of all sizes, and zeros."""
    random = np.random.default_rng([rank, meeting])
    values = [
        np.float32(random.normal(size=s) * 10.0 ** random.integers(-20, 9, size=s))
        for s in WIRE_SHAPES
    ]
    values[0][:100] = 0
    return values


def wire_worker(wire):
    """Three averages, and what is left after each."""
    size = ring.size()
    share = tf.constant([1, 4, 2][ring.rank()] / sum([1, 4, 2][:size]))

    @tf.function
    def average(values, left):
        with one_step():
            thin = thin_wire(wire)
            return average_thinly(thin, values, left, share, ring.global_process_set)

    left = [np.zeros(shape, np.float32) for shape in WIRE_SHAPES]
    results = []
    for meeting in range(3):
        values = values_of(ring.rank(), meeting)
        averages, left = tf.nest.map_structure(np.asarray, average(values, left))
        results.append((averages, left))
    values[3][0, 1, 7] = np.nan
    averages, _ = average(
        [v if ring.rank() else np.zeros_like(v) for v in values], left
    )
    return results, int(np.isnan(averages[3]).sum())


@pytest.mark.parametrize(("size", "wire"), [(3, "int8"), (2, "top-k")])
def test_thin_wires_are_those_of_numpy_bit_for_bit(rank_pool, size, wire):
    results, nans = zip(*rank_pool(size).run(wire_worker, args=(wire,)), strict=True)

    shares = [share / sum([1, 4, 2][:size]) for share in [1, 4, 2][:size]]
    left = [[np.zeros(shape, np.float32) for shape in WIRE_SHAPES]] * size
    for meeting, of_ranks in enumerate(zip(*results, strict=True)):
        values = [values_of(rank, meeting) for rank in range(size)]
        averages, left = thin_average(wire, values, left, shares)
        for rank, (theirs, theirs_left) in enumerate(of_ranks):
            for ours, own in zip(averages, theirs, strict=True):
                np.testing.assert_array_equal(own, ours)
            for ours, own in zip(left[rank], theirs_left, strict=True):
                np.testing.assert_array_equal(own, ours)
    # All have it: of its block, or in its place.
    assert set(nans) == {{"int8": 256, "top-k": 1}[wire]}


def fragments_worker(inner, wire, fragments, overlap, **compiled):
    """The weights after each epoch, as those of the reference."""
    model = training.build(1)
    optimizer = ring.DiLoCo(
        INNER[inner](),
        sync_every=5,
        wire=wire,
        fragments=fragments,
        overlap_steps=overlap,
    )
    model.compile(optimizer, "binary_crossentropy", **compiled)
    weights = []
    for _ in range(2):
        model.fit(rank_dataset(12), verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return weights


@pytest.mark.parametrize(
    ("size", "inner", "wire", "fragments", "overlap", "compiled"),
    [
        pytest.param(*(2, "sgd", "int8", 3, 0, {}), marks=pytest.mark.slow),
        (2, "sgd", "float32", 2, 4, {"steps_per_execution": 4}),
        pytest.param(*(2, "sgd", "int8", 1, 3, {}), marks=pytest.mark.slow),
        pytest.param(
            *(2, "sgd", "int8", 2, 3, {"jit_compile": True}), marks=pytest.mark.slow
        ),
        pytest.param(*(2, "sgd", "top-k", 1, 2, {}), marks=pytest.mark.slow),
        pytest.param(*(3, "sgd", "int8", 3, 0, {}), marks=pytest.mark.slow),
        pytest.param(
            *(3, "sgd", "float32", 2, 4, {"steps_per_execution": 4}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(2, "sgd", "float32", 2, 0, {"steps_per_execution": 4}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(2, "sgd", "float32", 3, 0, {"jit_compile": True}), marks=pytest.mark.slow
        ),
        pytest.param(*(2, "sgd", "float32", 1, 3, {}), marks=pytest.mark.slow),
        pytest.param(
            *(2, "accumulation", "float32", 2, 0, {"run_eagerly": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param(*(4, "accumulation", "float32", 3, 2, {}), marks=pytest.mark.slow),
        # One of the two messages is waited for where it begins.
        pytest.param(*(3, "sgd", "int8", 3, 1, {}), marks=pytest.mark.slow),
        pytest.param(
            *(3, "sgd", "int8", 1, 1, {"jit_compile": True}), marks=pytest.mark.slow
        ),
        pytest.param(
            *(3, "sgd", "int8", 1, 4, {"steps_per_execution": 4}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(2, "accumulation", "int8", 2, 2, {"run_eagerly": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(3, "accumulation", "top-k", 2, 3, {"jit_compile": True}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(3, "sgd", "float32", 2, 4, {"jit_compile": True}), marks=pytest.mark.slow
        ),
        pytest.param(
            *(2, "sgd", "float32", 3, 1, {"run_eagerly": True}), marks=pytest.mark.slow
        ),
    ],
)
def test_fragments_meet_in_turn(
    rank_pool, size, inner, wire, fragments, overlap, compiled
):
    worker = functools.partial(fragments_worker, **compiled)
    results = rank_pool(size).run(worker, args=(inner, wire, fragments, overlap))

    assert len({training.as_bytes(weights[1]) for weights in results}) == 1
    batches = 10 if inner == "accumulation" else 5
    reference = Reference(size, inner, "diloco", batches, wire, fragments, overlap)
    for weights in results[0]:
        reference.epoch(12)
        assert training.largest_difference(weights, reference.common) < 1e-6


def fragments_in_loop_worker():
    """After which steps of a loop the ranks have which variables in common."""
    model = training.build(1)
    model.compile(ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, fragments=2))
    step = tf.function(step_of(model))
    seen = []
    for x, y in batches_of(ring.rank(), ring.size(), 10)[:-1]:
        step(tf.constant(x), tf.constant(y))
        seen.append([training.as_bytes([w]) for w in model.get_weights()])
    return seen


@pytest.mark.slow
def test_each_fragment_meets_at_its_time(rank_pool):
    first, second = rank_pool(2).run(fragments_in_loop_worker)

    common = [
        [one == other for one, other in zip(*after, strict=True)]
        for after in zip(first, second, strict=True)
    ]
    assert [number for number, of in enumerate(common, 1) if of[0]] == [2, 6]
    for index in (1, 2, 3):
        assert [number for number, of in enumerate(common, 1) if of[index]] == [4, 8]


def ahead_worker(wire, most, jit_compile):
    """Rank 0 goes on when a meeting has begun, while rank 1 has not come to it."""
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=3, wire=wire
    )
    model.compile(optimizer, "binary_crossentropy")
    step = tf.function(step_of(model), reduce_retracing=True, jit_compile=jit_compile)
    batches = batches_of(ring.rank(), ring.size(), 9)[:8]
    step(*batches[0])  # The ranks agree.
    waits_after = most if ring.rank() == 0 else 1
    for number, batch in enumerate(batches[1:], 1):
        if number == waits_after:
            ring.barrier()
        step(*batch)
    assert optimizer.is_apart
    optimizer.meet()
    return model.get_weights()


# By `most` updates it is not ahead of a message that it waits for.
@pytest.mark.parametrize(
    ("wire", "most", "jit_compile"),
    [("float32", 6, None), ("float32", 6, True), ("int8", 4, None), ("top-k", 4, True)],
)
@pytest.mark.slow
def test_no_rank_waits_for_a_meeting_that_has_begun(rank_pool, wire, most, jit_compile):
    first, second = rank_pool(2).run(ahead_worker, args=(wire, most, jit_compile))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, wire, overlap=3)
    reference.loop(0, 8)
    reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


def too_many_fragments_worker():
    """More than there are variables, which is known when it is built."""
    model = training.build(1)
    optimizer = ring.DiLoCo("sgd", sync_every=9, fragments=5)
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises(ValueError, match=r"RK346.*fragments=5, 4 variables"):
        model.fit(rank_dataset(4), verbose=0)


def test_fragments_have_variables(rank_pool):
    rank_pool(2).run(too_many_fragments_worker)
