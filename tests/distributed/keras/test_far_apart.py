"""Ranks that train apart, and meet every so many updates."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import signal
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring
from ring_keras import _libraries, verify
from ring_keras.ops.step import one_step
from ring_keras.optimizers.wires import average_thinly

BATCH = 4

INNER: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss_scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01)
    ),
}

# What makes the optimizer of inner and `sync_every`; the rate and momentum of outer.
OUTER: dict[str, tuple[Callable[..., Any], float, float]] = {
    "average": (ring.DistributedOptimizer, 1.0, 0.0),
    "diloco": (ring.DiLoCo, 0.7, 0.9),
}


def batches_of(rank: int, size: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """A rank's batches of an epoch; the last one is smaller, but for rank 0."""
    x, y = (array[rank::size] for array in training.arrays())
    parts = [slice(BATCH * n, BATCH * (n + 1)) for n in range(steps)]
    parts[-1] = slice(parts[-1].start, parts[-1].stop - min(rank, BATCH - 1))
    return [(x[part], y[part]) for part in parts]


def rank_dataset(steps: int) -> tf.data.Dataset:
    """This rank's batches, as a dataset that knows how many there are."""
    batches = batches_of(ring.rank(), ring.size(), steps)
    return tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, 6), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(steps))


Arrays = list[np.ndarray]


def quantized(blocks: np.ndarray) -> np.ndarray:
    """What int8 makes of rows that have a scale each."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) * np.float32(1 / 127)
    levels = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)
    return np.round(levels) * scale


def thin_average(
    wire: str, everyones: list[Arrays], residuals: list[Arrays], shares: list[float]
) -> tuple[Arrays, list[Arrays]]:
    """The average of what the ranks have, on a wire, and what it leaves with each."""
    size = len(everyones)
    own = [
        [np.float32(share) * value + left for value, left in zip(*both, strict=True)]
        for share, *both in zip(shares, everyones, residuals, strict=True)
    ]
    like = own[0]
    flat = np.stack([np.concatenate([v.ravel() for v in of_rank]) for of_rank in own])
    count = flat.shape[1]
    if wire == "int8":
        rows = -(-count // (256 * size)) * size
        blocks = np.zeros((size, rows * 256), np.float32)
        blocks[:, :count] = flat
        blocks = blocks.reshape(size, rows, 256)
        sent = np.stack([quantized(of_rank) for of_rank in blocks])
        total = np.zeros_like(blocks[0])
        for of_rank in sent:
            total += of_rank
        average = quantized(total)
        left = blocks - sent
        for rank in range(size):
            part = slice(rank * rows // size, (rank + 1) * rows // size)
            left[rank, part] += total[part] - average[part]
        average, left = average.ravel(), left.reshape(size, -1)
    else:
        average, left = np.zeros_like(flat[0]), flat.copy()
        for rank in range(size):
            begin = 0
            for value in like:
                part = flat[rank, begin : begin + value.size]
                kept = -(-value.size // 32)
                chosen = begin + np.argsort(-np.abs(part), kind="stable")[:kept]
                average[chosen] += flat[rank, chosen]
                left[rank, chosen] = 0
                begin += value.size

    def divided(one: np.ndarray) -> Arrays:
        ends = np.cumsum([value.size for value in like])
        parts = zip(np.split(one[:count], ends[:-1]), like, strict=True)
        return [part.reshape(value.shape) for part, value in parts]

    return divided(average), [divided(of_rank) for of_rank in left]


# Of the four variables of `training.build`, of 48, 8, 8 and 1 weights, by number.
FRAGMENTS = {1: [[0, 1, 2, 3]], 2: [[0], [1, 2, 3]], 3: [[0], [1, 3], [2]]}


class Reference:
    """The algorithm in one process: a model for each rank, and NumPy in between."""

    def __init__(
        self,
        size: int,
        inner: str,
        outer: str,
        sync_every: int,
        wire: str = "float32",
        fragments: int = 1,
        overlap: int = 0,
    ) -> None:
        _, self._rate, self._momentum = OUTER[outer]
        self._wire = wire
        self._sync_every = sync_every
        self.models = [training.build(1) for _ in range(size)]
        for model in self.models:
            model.compile(INNER[inner](), "binary_crossentropy")
        self.common = [w.astype(np.float64) for w in self.models[0].get_weights()]
        self._velocity = [np.zeros_like(w) for w in self.common]
        self.left = [[np.float32(0 * w) for w in self.common] for _ in range(size)]
        self._overlap = overlap
        self._under_way: dict[int, tuple[list[Arrays], np.ndarray]] = {}
        self._per_update = 2 if inner == "accumulation" else 1
        self._fragments = FRAGMENTS[fragments]
        self._amounts = np.zeros((fragments, size))
        self._steps = 0

    def epoch(self, steps: int) -> None:
        """Trains all ranks by `rank_dataset`, and has them meet at its end."""
        self._train([batches_of(r, len(self.models), steps) for r in self._ranks()])
        if self._steps:
            self.meet()

    def loop(self, begin: int, end: int) -> None:
        """Trains all ranks by full batches, and counts each as much."""
        size = len(self.models)
        self._train([batches_of(r, size, end + 1)[begin:end] for r in self._ranks()])

    def alone(self, rank: int, begin: int, end: int) -> None:
        """Trains one rank on, in the same window, by full batches."""
        for x, y in batches_of(rank, len(self.models), end + 1)[begin:end]:
            self.models[rank].train_on_batch(x, y)
            self._amounts[:, rank] += len(x)

    def _ranks(self) -> range:
        return range(len(self.models))

    def _train(self, everyones: list[list[tuple[np.ndarray, np.ndarray]]]) -> None:
        for batches in zip(*everyones, strict=True):
            for rank, (x, y) in enumerate(batches):
                self.models[rank].train_on_batch(x, y)
                self._amounts[:, rank] += len(x)
            self._steps += 1
            for number in range(len(self._fragments)):
                updates = self._sync_every // self._per_update
                due = -(-(number + 1) * updates // len(self._fragments))
                due *= self._per_update
                place = self._steps % self._sync_every
                if place == due % self._sync_every:
                    if self._overlap:
                        self._depart(number)
                    else:
                        self._meet(number)
                late = due + self._overlap * self._per_update
                if place == late % self._sync_every and number in self._under_way:
                    self._merge(number)

    def meet(self) -> None:
        """All that have something new meet."""
        for number, fragment in enumerate(self._fragments):
            if number in self._under_way:
                self._merge(number)
            if self._amounts[number].any():
                self._meet(number)
            self._set(fragment, [self.common] * len(self.models))
        self._steps = 0

    def forget(self) -> None:
        """No meeting has begun."""
        self._under_way.clear()

    def _depart(self, number: int) -> None:
        self._under_way[number] = (self._changes(number), self._amounts[number].copy())
        self._amounts[number] = 0

    def _merge(self, number: int) -> None:
        fragment = self._fragments[number]
        before = [model.get_weights() for model in self.models]
        self._take(fragment, *self._under_way.pop(number))
        for own in before:
            for index in fragment:
                own[index] = (own[index] + self.common[index]) / 2
        self._set(fragment, before)

    def _meet(self, number: int) -> None:
        fragment = self._fragments[number]
        self._take(fragment, self._changes(number), self._amounts[number])
        self._set(fragment, [self.common] * len(self.models))
        self._amounts[number] = 0
        if len(self._fragments) == 1:
            self._steps = 0

    def _changes(self, number: int) -> list[Arrays]:
        return [
            [
                np.float32(self.common[index]) - model.get_weights()[index]
                for index in self._fragments[number]
            ]
            for model in self.models
        ]

    def _set(self, fragment: list[int], everyones: list[Arrays]) -> None:
        for model, of_rank in zip(self.models, everyones, strict=True):
            weights = model.get_weights()
            for index in fragment:
                weights[index] = of_rank[index]
            model.set_weights(weights)

    def _take(
        self, fragment: list[int], changes: list[Arrays], amounts: np.ndarray
    ) -> None:
        """One meeting: the average of the changes, and Nesterov's momentum."""
        if self._wire == "float32":
            averages = [
                np.average(of_all, axis=0, weights=amounts)
                for of_all in zip(*changes, strict=True)
            ]
        else:
            averages, left = thin_average(
                self._wire,
                changes,
                [[of_rank[index] for index in fragment] for of_rank in self.left],
                list(amounts / sum(amounts)),
            )
            for of_rank, left_of_rank in zip(self.left, left, strict=True):
                for index, one in zip(fragment, left_of_rank, strict=True):
                    of_rank[index] = one
        for index, change in zip(fragment, averages, strict=True):
            velocity = self._momentum * self._velocity[index] - self._rate * change
            self._velocity[index] = velocity
            self.common[index] = self.common[index] + (
                self._momentum * velocity - self._rate * change
                if self._momentum
                else velocity
            )


def fit_worker(inner, outer, sync_every, steps, epochs, options=(), **compiled):
    """Trains in `fit`; returns the weights, and how many meetings there were."""
    make, _, _ = OUTER[outer]
    model = training.build(ring.rank())  # All take the first rank's.
    if ring.rank() == 0:
        model = training.build(1)
    optimizer = make(INNER[inner](), sync_every=sync_every, **dict(options))
    model.compile(optimizer, "binary_crossentropy", **compiled)
    model.fit(rank_dataset(steps), epochs=epochs, verbose=0, shuffle=False)
    if compiled.get("jit_compile") and _libraries.has_xla_kernels():
        assert model.jit_compile, "XLA was turned off"
    return model.get_weights(), int(optimizer.outer_optimizer.iterations)


def require_reference(
    results, size, inner, outer, sync_every, steps, epochs, wire="float32"
):
    """The ranks have one model, bit for bit, and it is that of the algorithm."""
    all_weights, meetings = zip(*results, strict=True)
    assert len({training.as_bytes(weights) for weights in all_weights}) == 1
    batches = sync_every * (2 if inner == "accumulation" else 1)
    assert meetings == (-(-steps // batches) * epochs,) * size
    reference = Reference(size, inner, outer, batches, wire)
    for _ in range(epochs):
        reference.epoch(steps)
    assert training.largest_difference(all_weights[0], reference.common) < 1e-6


@pytest.mark.parametrize(
    ("size", "inner", "outer", "sync_every", "compiled"),
    [
        (2, "sgd", "average", 3, {}),
        (2, "sgd", "diloco", 3, {}),
        (2, "accumulation", "average", 2, {}),
        (3, "adam", "diloco", 3, {}),
        (2, "adam", "diloco", 3, {"jit_compile": True}),
        (2, "adam", "diloco", 3, {"steps_per_execution": 5}),
        pytest.param(2, "adam", "diloco", 4, {}, marks=pytest.mark.slow),
        pytest.param(2, "loss_scaled", "diloco", 3, {}, marks=pytest.mark.slow),
        pytest.param(
            3, "sgd", "diloco", 4, {"run_eagerly": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_fit_is_the_algorithm(rank_pool, size, inner, outer, sync_every, compiled):
    """Epochs of 8 steps end between two meetings, and the ranks meet there, too."""
    worker = functools.partial(fit_worker, **compiled)
    results = rank_pool(size).run(worker, args=(inner, outer, sync_every, 8, 2))

    require_reference(results, size, inner, outer, sync_every, 8, 2)


@pytest.mark.parametrize(
    ("size", "wire", "compiled"),
    [
        (3, "int8", {}),
        (2, "top-k", {}),
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
        (3, "sgd", "int8", 3, 0, {}),
        (3, "sgd", "float32", 2, 4, {"steps_per_execution": 4}),
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


def test_each_fragment_meets_at_its_time(rank_pool):
    first, second = rank_pool(2).run(fragments_in_loop_worker)

    common = [
        [one == other for one, other in zip(*after, strict=True)]
        for after in zip(first, second, strict=True)
    ]
    assert [number for number, of in enumerate(common, 1) if of[0]] == [2, 6]
    for index in (1, 2, 3):
        assert [number for number, of in enumerate(common, 1) if of[index]] == [4, 8]


def ahead_worker():
    """Rank 0 goes on when a meeting has begun, while rank 1 has not come to it."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=3)
    model.compile(optimizer, "binary_crossentropy")
    step = tf.function(step_of(model), reduce_retracing=True)
    batches = batches_of(ring.rank(), ring.size(), 9)[:8]
    step(*batches[0])  # The ranks agree.
    waits_after = 6 if ring.rank() == 0 else 1
    for number, batch in enumerate(batches[1:], 1):
        if number == waits_after:
            ring.barrier()
        step(*batch)
    assert optimizer.is_apart
    optimizer.meet()
    return model.get_weights()


def test_no_rank_waits_for_a_meeting_that_has_begun(rank_pool):
    first, second = rank_pool(2).run(ahead_worker)

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, overlap=3)
    reference.loop(0, 8)
    reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


def fails_under_way_worker():
    """A rank that fails when a meeting has begun; then all train again."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=2)
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises((OSError, ring.RingKerasError)):
        model.fit(rank_dataset(8), verbose=0, callbacks=[LeavesEarly(True)])
    model.fit(rank_dataset(8), verbose=0, shuffle=False)
    weights = model.get_weights()
    assert pickle.loads(pickle.dumps(model)).optimizer.overlap_steps == 2
    if _libraries.has_xla_kernels():
        with pytest.raises(ring.RingKerasError, match="RK347"):
            model.compile(optimizer, "binary_crossentropy", jit_compile=True)
            model.fit(rank_dataset(8), verbose=0)
    return weights


def test_a_meeting_of_a_fit_that_failed_is_forgotten(rank_pool):
    first, second = rank_pool(2).run(fails_under_way_worker)

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, overlap=2)
    reference.loop(0, 5)
    reference.forget()
    # All begin with the first rank's.
    reference.models[1].set_weights(reference.models[0].get_weights())
    reference.epoch(8)
    assert training.largest_difference(first, reference.common) < 1e-6


def loaded_under_way_worker(directory):
    """A file is loaded when a meeting has begun, which is not of its weights."""
    model = training.build(1)
    model.compile(
        ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4, overlap_steps=2),
        "binary_crossentropy",
    )
    model.optimizer.build(model.trainable_variables)
    file = f"{directory}/{ring.rank()}.weights.h5"
    model.save_weights(file)
    step = tf.function(step_of(model), reduce_retracing=True)
    batches = batches_of(ring.rank(), ring.size(), 9)[:8]
    for batch in batches[:5]:
        step(*batch)
    model.load_weights(file)
    for batch in batches:
        step(*batch)
    model.optimizer.meet()
    return model.get_weights()


def test_a_file_that_is_loaded_forgets_a_meeting_under_way(rank_pool, tmp_path):
    first, second = rank_pool(2).run(loaded_under_way_worker, args=(str(tmp_path),))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "sgd", "diloco", 4, overlap=2)
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
            return average_thinly(wire, values, left, share, ring.global_process_set)

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


def synchronous_worker():
    """Weights of one update per meeting, and of averaged gradients."""
    weights = []
    for options in ({"sync_every": 1}, {}):
        model = training.build(1)
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
        model.compile(optimizer, "binary_crossentropy")
        model.fit(rank_dataset(8), epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return training.largest_difference(*weights)


def test_one_update_per_meeting_is_synchronous_sgd(rank_pool):
    assert max(rank_pool(2).run(synchronous_worker)) < 1e-6


def step_of(model: keras.Model) -> Callable[[Any, Any], None]:
    """A step in a loop of one's own."""
    loss = keras.losses.BinaryCrossentropy()

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(value, variables), variables)

    return step


def loop_worker(kind):
    """The weights after each step of a loop, as bytes, and after a last meeting."""
    model = training.build(1)
    model.compile(ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=3))
    step = step_of(model)
    if kind != "eager":
        step = tf.function(
            step,
            jit_compile=kind == "jit",
            input_signature=[
                tf.TensorSpec((BATCH, 6), tf.float32),
                tf.TensorSpec((BATCH, 1), tf.float32),
            ],
        )
    after = []
    for x, y in batches_of(ring.rank(), ring.size(), 12)[:-1]:
        step(tf.constant(x), tf.constant(y))
        after.append(training.as_bytes(model.get_weights()))
    assert model.optimizer.is_apart
    model.optimizer.meet()
    assert not model.optimizer.is_apart
    met = model.get_weights()
    model.optimizer.meet()
    assert training.as_bytes(model.get_weights()) == training.as_bytes(met)
    return after, met


@pytest.mark.parametrize(
    "kind", ["function", "eager", pytest.param("jit", marks=pytest.mark.slow)]
)
def test_ranks_are_equal_where_they_have_met_and_nowhere_else(rank_pool, kind):
    results = rank_pool(2).run(loop_worker, args=(kind,))

    after, met = zip(*results, strict=True)
    equal = [first == second for first, second in zip(*after, strict=True)]
    assert [n for n, same in enumerate(equal, 1) if same] == [3, 6, 9]
    assert training.as_bytes(met[0]) == training.as_bytes(met[1])
    reference = Reference(2, "sgd", "diloco", 3)
    reference.loop(0, 11)
    reference.meet()
    assert training.largest_difference(met[0], reference.common) < 1e-6


def loaded_worker(directory):
    """Goes on from a file that the first rank has saved between two meetings."""
    model = training.build(1)
    make = ring.DiLoCo(INNER["sgd"](), sync_every=4)
    model.compile(make, "binary_crossentropy")
    batches = batches_of(ring.rank(), ring.size(), 20)
    step = tf.function(step_of(model), reduce_retracing=True)
    for x, y in batches[:6]:
        step(x, y)
    if ring.rank() == 0:
        model.save(f"{directory}/apart.keras")
    ring.barrier()
    loaded = keras.models.load_model(f"{directory}/apart.keras")
    assert type(loaded.optimizer) is ring.DiLoCo
    assert loaded.optimizer.sync_every == 4
    assert loaded.optimizer.is_apart
    if ring.rank() == 0:
        for ours, theirs in zip(
            model.optimizer.variables, loaded.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    step = tf.function(step_of(loaded), reduce_retracing=True)
    for x, y in batches[6:12]:
        step(x, y)
    return loaded.get_weights()


def test_a_file_saved_between_two_meetings_goes_on_there(rank_pool, tmp_path):
    all_weights = rank_pool(2).run(loaded_worker, args=(str(tmp_path),))

    assert training.as_bytes(all_weights[0]) == training.as_bytes(all_weights[1])
    reference = Reference(2, "sgd", "diloco", 4)
    reference.loop(0, 6)
    reference.models[1].set_weights(reference.models[0].get_weights())
    reference.loop(6, 12)
    assert training.largest_difference(all_weights[0], reference.common) < 1e-6


def loaded_residuals_worker(directory):
    """A file has the residuals; what one rank alone goes on with has all of them."""
    model = training.build(1)
    model.compile(
        ring.DiLoCo(INNER["sgd"](), sync_every=2, wire="top-k"), "binary_crossentropy"
    )
    model.fit(rank_dataset(4), verbose=0)
    model.save(f"{directory}/{ring.rank()}.keras")
    loaded = keras.models.load_model(f"{directory}/{ring.rank()}.keras").optimizer
    own = [np.asarray(one) for one in model.optimizer.residuals]
    assert any(one.any() for one in own)
    for ours, theirs in zip(own, loaded.residuals, strict=True):
        np.testing.assert_array_equal(theirs, ours)
    return own


def alone_worker(directory):
    """A job of one rank: nothing has to travel, so all that was left is applied."""
    model = keras.models.load_model(f"{directory}/0.keras")
    before = model.get_weights()
    left = [np.asarray(one) for one in model.optimizer.residuals]
    velocities = [np.asarray(v) for v in model.optimizer.outer_optimizer.variables[2:]]
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
    for _ in range(2):
        model.optimizer.apply(zeros, model.trainable_variables)
    assert not any(np.asarray(one).any() for one in model.optimizer.residuals)
    for weight, was, change, velocity in zip(
        model.get_weights(), before, left, velocities, strict=True
    ):
        velocity = 0.9 * velocity - 0.7 * change
        np.testing.assert_allclose(
            weight, was + 0.9 * velocity - 0.7 * change, atol=1e-6
        )


def test_residuals_are_saved_and_lost_on_no_number_of_ranks(rank_pool, tmp_path):
    first, second = rank_pool(2).run(loaded_residuals_worker, args=(str(tmp_path),))
    assert training.largest_difference(first, second) > 0

    rank_pool(1).run(alone_worker, args=(str(tmp_path),))


def copies_worker():
    """Every kind of copy is the same optimizer, and trains."""
    optimizer = ring.DiLoCo(
        keras.optimizers.Adam(0.02),
        keras.optimizers.SGD(0.5, momentum=0.8),
        sync_every=5,
        wire="int8",
        fragments=2,
        name="mine",
    )
    config = optimizer.get_config()
    model = training.build(1)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(6), verbose=0)
    copies = [
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
        ring.DiLoCo.from_config(optimizer.get_config()),
        keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)),
        pickle.loads(pickle.dumps(model)).optimizer,
    ]
    for one in copies:
        assert type(one) is ring.DiLoCo
        assert one.get_config() == config
    assert optimizer.get_config() == config
    assert float(optimizer.learning_rate) == pytest.approx(0.02)
    optimizer.learning_rate = 0.01
    assert float(optimizer.inner_optimizer.learning_rate) == pytest.approx(0.01)
    assert int(optimizer.iterations) == 6
    clone = keras.models.clone_model(model)
    clone.compile(copies[2], "binary_crossentropy")
    clone.fit(rank_dataset(6), verbose=0)
    return training.as_bytes(clone.get_weights())


def test_copies_are_the_same_optimizer(rank_pool):
    first, second = rank_pool(2).run(copies_worker)

    assert first == second


def refusals_worker():
    """What no rank may begin with: the messages."""
    sgd = keras.optimizers.SGD
    built = sgd(0.1)
    built.build([keras.Variable([1.0])])
    cases = [
        lambda: ring.DiLoCo(sgd(), sync_every=0),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=-1),
        lambda: ring.DiLoCo(sgd(), sync_every=2.5),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=2, op=ring.Adasum),
        lambda: ring.DistributedOptimizer(sgd(), sync_every=2, sparse_as_dense=True),
        lambda: ring.DiLoCo(sgd(), built, sync_every=2),
        lambda: ring.DiLoCo(ring.DistributedOptimizer(sgd()), sync_every=2),
        lambda: ring.DiLoCo(ring.DiLoCo(sgd(), sync_every=2), sync_every=2),
        lambda: ring.DiLoCo(sgd(use_ema=True), sync_every=2),
        lambda: ring.DiLoCo(sgd(), sgd(gradient_accumulation_steps=2), sync_every=2),
        lambda: ring.DiLoCo(sgd(), sgd(loss_scale_factor=2.0), sync_every=2),
        lambda: ring.DiLoCo("ftrl", sync_every=2),
        lambda: ring.DiLoCo("sgd", sync_every=2, wire="int4"),
        lambda: ring.DiLoCo("sgd", sync_every=2, fragments=3),
        lambda: ring.DiLoCo("sgd", sync_every=2, overlap_steps=2),
        lambda: ring.DiLoCo("sgd", sync_every=2, overlap_steps=1, wire="int8"),
    ]
    messages = []
    for case in cases:
        with pytest.raises(ValueError, match=r"RK34[3567]") as error:
            case()
        messages.append(str(error.value))
    return messages


def test_what_cannot_be_is_refused(rank_pool):
    first, second = rank_pool(2).run(refusals_worker)

    for message, words in zip(
        first,
        [
            "sync_every=0",
            "sync_every=-1",
            "sync_every=2.5",
            "op=<ReduceOp.ADASUM: 'adasum'>",
            "sparse_as_dense=True",
            "is built already",
            "is a distributed optimizer already",
            "hands its gradients to optimizers of its own",
            "has use_ema",
            "gradient_accumulation_steps=2",
            "loss_scale_factor=2.0",
            "makes weights of its own state",
            "wire='int4'",
            "fragments=3, sync_every=2",
            "overlap_steps=2, sync_every=2",
            "does not go with wire='int8'",
        ],
        strict=True,
    ):
        assert words in message
    assert first == second


def disagreement_worker(what):
    """Ranks that would not meet; returns the error of each."""
    odd = ring.rank() == 1
    outer = keras.optimizers.SGD(0.5 if what == "outer" and not odd else 0.7)
    sync_every = 2 if what == "sync_every" and not odd else 3
    wire = "int8" if what == "wire" and odd else "float32"
    model = training.build(1)
    optimizer = ring.DiLoCo(
        keras.optimizers.SGD(0.1), outer, sync_every=sync_every, wire=wire
    )
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises(ring.RankMismatchError, match="RK342") as in_fit:
        model.fit(rank_dataset(4), verbose=0)
    step = step_of(model)
    ((x, y),) = batches_of(ring.rank(), ring.size(), 1)
    with pytest.raises(ring.RankMismatchError, match="RK342") as in_loop:
        step(tf.constant(x), tf.constant(y))
    return str(in_fit.value), str(in_loop.value)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("sync_every", "sync_every differs across ranks: rank 0 has 2, rank 1 has 3"),
        ("outer", "the optimizer of the meetings differs across ranks: rank 0 has SGD"),
        ("wire", "wire differs across ranks: rank 0 has float32, rank 1 has int8"),
    ],
)
def test_ranks_that_disagree_all_get_an_error(rank_pool, what, words):
    for messages in rank_pool(2).run(disagreement_worker, args=(what,)):
        assert all(words in message for message in messages)


def loss_scale_worker():
    """A LossScaleOptimizer around it, as compile() adds one."""
    model = training.build(1, dtype="mixed_float16")
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer), "binary_crossentropy")
    with pytest.raises(ring.RingKerasError, match="RK344"):
        model.fit(rank_dataset(4), verbose=0)


def test_loss_scaling_around_it_is_refused(rank_pool):
    rank_pool(2).run(loss_scale_worker)


class OwnStep(keras.Model):
    """Applies gradients in its own `train_step`, of a sum that it computes."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                keras.losses.binary_crossentropy(y, self(x, training=True))
            )
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_step_worker():
    """A custom step; and a compiled loss that adds up its batch."""
    weights = []
    for cls in (OwnStep, None):
        model = training.build(1, cls)
        optimizer = ring.DiLoCo(keras.optimizers.SGD(0.01), sync_every=3)
        model.compile(optimizer, keras.losses.BinaryCrossentropy(reduction="sum"))
        model.fit(rank_dataset(7), verbose=0, shuffle=False)
        weights.append(model.get_weights())
    return weights


def test_custom_steps_and_summed_losses_are_those_of_one_rank(rank_pool):
    results = rank_pool(2).run(own_step_worker)

    own, plain = results[0]
    assert training.as_bytes(own) == training.as_bytes(results[1][0])
    assert training.as_bytes(plain) == training.as_bytes(results[1][1])
    assert training.largest_difference(own, plain) < 1e-6


class Watcher(keras.callbacks.Callback):
    """Notes weights where callbacks save and validate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bytes] = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(training.as_bytes(self.model.get_weights()))

    on_test_begin = lambda self, logs=None: self.on_epoch_end(0)  # noqa: E731


def epochs_worker():
    """What validation and callbacks see, and what the metrics are of."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=3)
    training.compile_model(model, optimizer)
    watcher = Watcher()
    x, y = training.arrays()
    part = slice(ring.rank(), None, ring.size())
    history = model.fit(
        rank_dataset(7),
        epochs=2,
        verbose=0,
        validation_data=(x[part], y[part]),
        callbacks=[watcher],
    ).history
    alone = dict(
        zip(("loss", "accuracy", "auc"), model.evaluate(x, y, verbose=0), strict=True)
    )
    return watcher.seen, history, alone


def test_validation_and_callbacks_see_common_weights(rank_pool):
    (seen, history, alone), second = rank_pool(2).run(epochs_worker)

    assert len(seen) == 4
    assert (seen, history) == second[:2]
    for key, value in alone.items():
        assert history[f"val_{key}"][-1] == pytest.approx(value, abs=1e-5)


def checked_worker(options):
    """Comparisons of weights do not take ranks that are apart for ones that differ."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=3, **options)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(8), epochs=2, verbose=0)
    if ring.rank() == 1:
        optimizer.outer_optimizer.variables[-1].assign_add([1.0])
        model.optimizer.inner_optimizer.learning_rate = 0.02
    return True


@pytest.mark.parametrize("options", [{"wire": "int8"}, {"overlap_steps": 2}])
def test_checks_of_equal_weights_know_of_it(rank_pool, options):
    checked = rank_pool(2, env={"RING_KERAS_CHECK_STEPS": "2"})

    assert checked.run(checked_worker, args=(options,)) == [True, True]


def joined_worker(jit_compile):
    """A rank whose data end within a window."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=4)
    model.compile(optimizer, "binary_crossentropy", jit_compile=jit_compile)
    batches = batches_of(ring.rank(), ring.size(), 8)[: 7 if ring.rank() == 0 else 5]
    data = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, 6), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )
    model.fit(ring.data.join(data), verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_rank_without_data_waits_for_the_meeting(rank_pool, jit_compile):
    first, second = rank_pool(2).run(joined_worker, args=(jit_compile,))

    assert training.as_bytes(first) == training.as_bytes(second)
    reference = Reference(2, "adam", "diloco", 4)
    reference.loop(0, 5)
    reference.alone(0, 5, 7)
    reference.meet()
    assert training.largest_difference(first, reference.common) < 1e-6


class LeavesEarly(keras.callbacks.Callback):
    """Stops, or fails, on rank 1 within a window."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 4:
            if self._fails:
                raise OSError("the disk is full")
            self.model.stop_training = True


def leaving_worker(fails):
    """A rank that ends `fit` between two meetings: all do, and have met."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=4)
    model.compile(optimizer, "binary_crossentropy")
    try:
        model.fit(rank_dataset(8), verbose=0, callbacks=[LeavesEarly(fails)])
    except (OSError, ring.RingKerasError) as error:
        return str(error)
    assert int(optimizer.iterations) == 5
    return training.as_bytes(model.get_weights())


def test_a_rank_that_stops_between_two_meetings_stops_all(rank_pool):
    first, second = rank_pool(2).run(leaving_worker, args=(False,))

    assert first == second


def test_a_rank_that_fails_between_two_meetings_tells_the_others(rank_pool):
    first, second = rank_pool(2).run(leaving_worker, args=(True,))

    assert "[RK310]" in first
    assert "the disk is full" in first
    assert second == "the disk is full"


class TwoOptimizers(keras.Model):
    """Keeps one for each of its layers."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        for optimizer, layer in zip(self.both, self.layers[-2:], strict=True):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def several_worker(keeps_inner, jit_compile):
    """Two optimizers of one model that meet at different steps, in two `fit`s."""
    model = training.build(1, TwoOptimizers)
    first = ring.DiLoCo(keras.optimizers.Adam(0.01), sync_every=2)
    second = ring.DistributedOptimizer(keras.optimizers.SGD(0.1), sync_every=3)
    model.both = [first, second]
    if keeps_inner:  # `fit` finds it there, and must not make it distributed.
        model.inner = [one.inner_optimizer for one in model.both]
    model.compile("sgd", "binary_crossentropy", jit_compile=jit_compile)
    for _ in range(2):
        model.fit(rank_dataset(8), verbose=0)
    meetings = [int(one.outer_optimizer.iterations) for one in model.both]
    return meetings, training.as_bytes(model.get_weights())


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_optimizers_meet_each_by_itself(rank_pool, jit_compile):
    pool = rank_pool(2)
    first, second = pool.run(several_worker, args=(False, jit_compile))

    assert first == second
    assert first[0] == [2 * 4, 2 * 3]
    assert pool.run(several_worker, args=(True, jit_compile)) == [first] * 2


def frozen_worker():
    """A layer that is frozen after an epoch, whose momentum is not 0 then."""
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(4), verbose=0)
    model.layers[-2].trainable = False
    frozen = [weight.numpy() for weight in model.layers[-2].weights]
    others = model.layers[-1].weights[0].numpy()
    model.compile(optimizer, "binary_crossentropy")
    model.fit(rank_dataset(4), verbose=0)
    for weight, before in zip(model.layers[-2].weights, frozen, strict=True):
        np.testing.assert_array_equal(weight.numpy(), before)
    assert (model.layers[-1].weights[0].numpy() != others).any()
    return training.as_bytes(model.get_weights())


def test_meetings_leave_frozen_layers_alone(rank_pool):
    first, second = rank_pool(2).run(frozen_worker)

    assert first == second


def unbuilt_worker():
    """Gradients for no variables that it knows of: Keras's own error."""
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    with pytest.raises(ValueError, match="optimizer must already be built"):
        optimizer.apply([tf.constant(1.0)])


def test_gradients_need_variables(rank_pool):
    rank_pool(2).run(unbuilt_worker)


def sixteen_bits_worker(dtype, wire):
    """Weights of 16 bits, and more examples in a window than those can count."""
    model = training.build(1, dtype=dtype)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=30, wire=wire)
    model.compile(optimizer, "binary_crossentropy", auto_scale_loss=False)
    x, y = (np.tile(a[ring.rank() :: 2], (200, 1)) for a in training.arrays())
    history = model.fit(x, y, batch_size=4000, epochs=2, verbose=0).history["loss"]
    assert history[1] < history[0]
    assert model.layers[-2].weights[0].dtype == dtype
    return training.as_bytes([w.astype(np.float32) for w in model.get_weights()])


@pytest.mark.parametrize(
    ("dtype", "wire"), [("float16", "float32"), ("bfloat16", "int8")]
)
def test_weights_of_16_bits_meet(rank_pool, dtype, wire):
    first, second = rank_pool(2).run(sixteen_bits_worker, args=(dtype, wire))

    assert first == second


def mixed_precision_worker():
    """float16 with loss scaling inside, and batch normalization."""
    model = training.assemble(
        1,
        lambda: [
            keras.layers.Dense(8, dtype="mixed_float16"),
            keras.layers.BatchNormalization(dtype="mixed_float16"),
            keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
        ],
        None,
    )
    model.compile(
        ring.DiLoCo(INNER["loss_scaled"](), sync_every=3),
        "binary_crossentropy",
        auto_scale_loss=False,
    )
    history = model.fit(rank_dataset(8), epochs=6, verbose=0).history["loss"]
    assert history[-1] < history[0]
    return training.as_bytes(model.get_weights())


def test_loss_scaling_inside_and_checked_reductions(rank_pool):
    checked = rank_pool(2, env={"RING_KERAS_CHECK_REDUCTIONS": "1"})

    first, second = checked.run(mixed_precision_worker)
    assert first == second


class Preempted(keras.callbacks.Callback):
    """A signal to rank 1 within a window."""

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 4:
            os.kill(os.getpid(), signal.SIGTERM)


def preempted_worker(directory):
    """Ends at a signal; the weights of then, and those of who goes on."""
    weights = []
    for callbacks in ([Preempted()], []):
        model = training.build(1)
        optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=4)
        model.compile(optimizer, "binary_crossentropy")
        callbacks.append(ring.callbacks.Preemption(f"{directory}/backup"))
        watcher = Watcher()
        try:
            model.fit(
                rank_dataset(8), epochs=2, verbose=0, callbacks=[*callbacks, watcher]
            )
        except SystemExit as error:
            assert error.code == 128 + signal.SIGTERM
        weights.append(training.as_bytes(model.get_weights()))
    return weights, int(optimizer.outer_optimizer.iterations), watcher.seen


def test_a_signal_between_two_meetings_saves_common_weights(rank_pool, tmp_path):
    first, second = rank_pool(2).run(preempted_worker, args=(str(tmp_path),))

    assert first == second
    # Before the signal, and in both epochs, of which the first is begun anew.
    assert first[1] == 2 + 2 * 2


def verify_worker() -> None:
    ring.init()
    model = training.build(1)
    optimizer = ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2)
    model.compile(optimizer, "binary_crossentropy")
    with pytest.raises(ring.RingKerasError, match=r"\[RK343\]"):
        verify.compare(lambda: model.fit(rank_dataset(4), verbose=0))


def test_verify_refuses_what_is_not_meant_to_be_equal():
    run_ranks(verify_worker, 2)
