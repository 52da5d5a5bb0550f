"""PowerSGD: gradients travel as two thin matrices, as the algorithm in NumPy says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring

INPUTS, UNITS, BATCH, STEPS = 16, 24, 6, 8
# float32's, after as many steps.
LIMIT = 2e-5

optimizers = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: optimizers.SGD(0.2, momentum=0.9),
    "adam": lambda: optimizers.Adam(0.01),
    "clipped": lambda: optimizers.SGD(0.2, global_clipnorm=0.1),
    "accumulation": lambda: optimizers.SGD(0.2, gradient_accumulation_steps=2),
    # The scale doubles twice.
    "loss_scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.2), initial_scale=1024.0, dynamic_growth_steps=3
    ),
}


def build() -> keras.Model:
    """Two kernels that are compressed, one of convolution; all else is too small."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((INPUTS,)),
            keras.layers.Dense(UNITS, activation="tanh"),
            keras.layers.Reshape((UNITS // 4, 4)),
            keras.layers.Conv1D(16, 3, activation="tanh"),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


def batches_of(rank: int, *, uneven: bool, overflow: bool) -> list[Any]:
    """A rank's, the last one smaller on rank 1, and one without a finite gradient."""
    generator = np.random.default_rng(rank)
    batches = []
    for step in range(STEPS):
        x = generator.normal(size=(BATCH, INPUTS)).astype(np.float32)
        y = np.tanh(x.sum(axis=1, keepdims=True)).astype(np.float32)
        if uneven and rank == 1 and step == STEPS - 1:
            x, y = x[:2], y[:2]
        if overflow and rank == 1 and step == 4:
            x[0] = np.inf
        batches.append((x, y))
    return batches


def dataset_of(batches: list[Any]) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            tf.TensorSpec((None, INPUTS), tf.float32),
            tf.TensorSpec((None, 1), tf.float32),
        ),
    )


class Reference:
    """The algorithm: all ranks in one process, in float64."""

    def __init__(self, size: int, thin: int) -> None:
        self.size, self.thin = size, thin
        self.owed: dict[int, list[np.ndarray]] = {}
        self.right: dict[int, np.ndarray] = {}

    def reduce(self, gradients: list[list[np.ndarray]]) -> list[np.ndarray]:
        """The means of the ranks' gradients, by variable, or what is near them."""
        return [
            self._of_one(index, [g.astype(np.float64) for g in of_ranks])
            for index, of_ranks in enumerate(zip(*gradients, strict=True))
        ]

    def _of_one(self, index: int, of_ranks: list[np.ndarray]) -> np.ndarray:
        shape = of_ranks[0].shape
        matrices = [g.reshape(-1, shape[-1]) for g in of_ranks]
        rows, columns = matrices[0].shape
        thin = self.thin
        if len(shape) < 2 or 2 * thin * (rows + columns) >= rows * columns:
            return np.mean(of_ranks, axis=0)
        if index not in self.right:
            start = np.random.default_rng([rows, columns, thin])
            self.right[index] = start.standard_normal((columns, thin))
            self.owed[index] = [np.zeros((rows, columns))] * self.size
        matrices = [m + o for m, o in zip(matrices, self.owed[index], strict=True)]
        right, _ = np.linalg.qr(self.right[index])
        left, _ = np.linalg.qr(np.mean([m @ right for m in matrices], axis=0))
        self.right[index] = np.mean([m.T @ left for m in matrices], axis=0)
        result = left @ self.right[index].T
        self.owed[index] = [m - result for m in matrices]
        return result.reshape(shape)


def train_alone(
    size: int, thin: int, optimizer: str, batches: list[list[Any]], passes: int
) -> list[np.ndarray]:
    """The weights after all steps of all ranks."""
    model, reference = build(), Reference(size, thin)
    inner = OPTIMIZERS[optimizer]()
    if isinstance(inner, optimizers.LossScaleOptimizer):
        inner = inner.inner_optimizer
    inner.gradient_accumulation_steps = None
    sums: list[list[np.ndarray]] = []
    for step, of_step in enumerate(zip(*batches, strict=True)):
        total = sum(len(x) for x, _ in of_step)
        of_ranks = []
        for x, y in of_step:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            share = len(x) * size / total
            gradients = tape.gradient(loss, model.trainable_variables)
            of_ranks.append([share * g.numpy() / passes for g in gradients])
        if not all(np.isfinite(g).all() for rank in of_ranks for g in rank):
            continue
        sums = (
            [
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in zip(sums, of_ranks, strict=True)
            ]
            if sums
            else of_ranks
        )
        if (step + 1) % passes == 0:
            reduced = [g.astype(np.float32) for g in reference.reduce(sums)]
            inner.apply(reduced, model.trainable_variables)
            sums = []
    return model.get_weights()


def fit_worker(thin, optimizer, data, options, compiled):
    """The weights after `fit`."""
    model = build()
    compression = ring.Compression.powersgd(rank=thin)
    distributed = ring.DistributedOptimizer(
        OPTIMIZERS[optimizer](), compression=compression, **options
    )
    model.compile(distributed, "mse", **compiled)
    batches = batches_of(ring.rank(), **data)
    model.fit(dataset_of(batches), verbose=0, shuffle=False)
    return model.get_weights()


EVEN = {"uneven": False, "overflow": False}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("size", "thin", "optimizer", "data", "options", "compiled"),
    [
        (2, 1, "sgd", EVEN | {"uneven": True}, {}, {}),
        pytest.param(
            2, 1, "loss_scaled", EVEN | {"overflow": True}, {}, {}, marks=slow
        ),
        pytest.param(
            *(2, 1, "adam", EVEN, {"shard_state": True}, {"jit_compile": True}),
            marks=slow,
        ),
        pytest.param(3, 2, "clipped", EVEN | {"uneven": True}, {}, {}, marks=slow),
        pytest.param(2, 1, "accumulation", EVEN, {}, {}, marks=slow),
        pytest.param(3, 1, "accumulation", EVEN, {}, {"jit_compile": True}, marks=slow),
        pytest.param(2, 2, "adam", EVEN, {}, {"run_eagerly": True}, marks=slow),
        pytest.param(
            2, 1, "sgd", EVEN, {"gradient_predivide_factor": 2.0}, {}, marks=slow
        ),
    ],
)
def test_fit_is_the_algorithm(
    rank_pool, size, thin, optimizer, data, options, compiled
):
    """Also where ranks count by their examples, skip a step, or add gradients up."""
    weights = rank_pool(size).run(
        fit_worker, args=(thin, optimizer, data, options, compiled)
    )

    assert len({training.as_bytes(of_rank) for of_rank in weights}) == 1
    batches = [batches_of(rank, **data) for rank in range(size)]
    passes = 2 if optimizer == "accumulation" else 1
    wanted = train_alone(size, thin, optimizer, batches, passes)
    assert training.largest_difference(weights[0], wanted) < LIMIT
    exact = train_alone(size, 100, optimizer, batches, passes)
    assert training.largest_difference(weights[0], exact) > 20 * LIMIT


def tape_worker(op):
    """The weights after a loop of one's own, with sums or means."""
    model = build()
    optimizer = OPTIMIZERS["sgd"]()
    compression = ring.Compression.powersgd(rank=1)

    @tf.function
    def step(x, y):
        with ring.DistributedGradientTape(
            tf.GradientTape(), op=op, compression=compression
        ) as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
            if op == ring.Sum:
                loss /= ring.size()
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for x, y in batches_of(ring.rank(), **EVEN):
        step(x, y)
    return model.get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("op", [ring.Sum, ring.Average])
def test_a_loop_of_ones_own_is_the_algorithm(rank_pool, op):
    weights = rank_pool(2).run(tape_worker, args=(op,))

    assert len({training.as_bytes(of_rank) for of_rank in weights}) == 1
    batches = [batches_of(rank, **EVEN) for rank in range(2)]
    wanted = train_alone(2, 1, "sgd", batches, 1)
    assert training.largest_difference(weights[0], wanted) < LIMIT


def owed_worker():
    """What has come of gradients, and what they are on average, summed over steps."""
    compression = ring.Compression.powersgd(rank=1)
    variable = tf.Variable(tf.zeros((20, 30), tf.float64))
    generator = np.random.default_rng(ring.rank())
    came, wanted = np.zeros((20, 30)), np.zeros((20, 30))
    own = generator.normal(size=(20, 30))
    distances = []
    for _ in range(60):
        with ring.DistributedGradientTape(
            tf.GradientTape(), compression=compression
        ) as tape:
            loss = tf.reduce_sum(variable * tf.constant(own))
        (gradient,) = tape.gradient(loss, [variable])
        came += gradient.numpy()
        wanted += ring.allreduce(own, name="wanted").numpy()
        distances.append(np.linalg.norm(came - wanted) / np.linalg.norm(wanted))
    return distances


def test_nothing_is_lost(rank_pool):
    """What a step leaves out comes in later ones."""
    for distances in rank_pool(2).run(owed_worker):
        assert distances[0] > 0.5
        assert distances[-1] < 0.25 * distances[0]


def compiled_again_worker():
    """The weights of two fits, with and without `compile()` between them."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        data = batches_of(ring.rank(), uneven=False, overflow=False)
        weights = []
        for again in (False, True):
            model = build()
            optimizer = ring.DistributedOptimizer(
                optimizers.SGD(0.2, momentum=0.9),
                compression=ring.Compression.powersgd(rank=1),
            )
            model.compile(optimizer, "mse")
            for _ in range(2):
                model.fit(dataset_of(data), verbose=0)
                if again:
                    # Keras puts another LossScaleOptimizer around it.
                    model.compile(optimizer, "mse")
            weights.append(training.as_bytes(model.get_weights()))
        return weights
    finally:
        keras.config.set_dtype_policy("float32")


def test_what_is_owed_outlives_another_compile(rank_pool):
    for once, again in rank_pool(2).run(compiled_again_worker):
        assert once == again


def overflow_worker(where, dtype):
    """The kernel after three steps, of which the second may overflow."""
    kernel, bias = (tf.Variable(tf.zeros(one, dtype)) for one in ((20, 30), (3,)))
    compression = ring.Compression.powersgd(rank=1)
    optimizer = ring.DistributedOptimizer(
        optimizers.LossScaleOptimizer(optimizers.SGD(1.0), initial_scale=1024.0),
        compression=compression,
        op=ring.Sum,
    )
    optimizer.build([kernel, bias])
    generator = np.random.default_rng(ring.rank())
    for step in range(3):
        scale = float(optimizer.dynamic_scale)
        gradient = generator.normal(size=(20, 30)) * scale
        of_bias = np.full(3, scale)
        if step == 1:
            if where is None:
                continue
            if where == "sum":
                gradient = np.full((20, 30), 6e4)
            elif ring.rank() == 1:
                of_bias[0] = np.inf
        gradients = [tf.constant(one, dtype) for one in (gradient, of_bias)]
        optimizer.apply(gradients, [kernel, bias])
    return kernel.numpy().tobytes()


@pytest.mark.parametrize(
    ("where", "dtype"), [("bias", "float32"), ("bias", "float16"), ("sum", "float16")]
)
def test_a_step_that_is_skipped_leaves_nothing(rank_pool, where, dtype):
    """Also where another variable's gradient overflows, or only the ranks' sum does."""
    with_it = rank_pool(2).run(overflow_worker, args=(where, dtype))
    without = rank_pool(2).run(overflow_worker, args=(None, dtype))

    assert with_it == without


def twice_worker():
    """What two gradients of one variable have brought, and what was wanted."""
    variable = tf.Variable(tf.zeros((20, 30), tf.float64))
    optimizer = ring.DistributedOptimizer(
        optimizers.SGD(1.0), compression=ring.Compression.powersgd(rank=1)
    )
    optimizer.build([variable])
    generator = np.random.default_rng(ring.rank())
    own = generator.normal(size=(2, 20, 30))
    wanted = -60 * ring.allreduce(own.sum(axis=0), name="wanted").numpy()
    for _ in range(60):
        optimizer.apply([tf.constant(one) for one in own], [variable, variable])
    return np.linalg.norm(variable.numpy() - wanted) / np.linalg.norm(wanted)


def test_a_variable_may_be_given_twice(rank_pool):
    for distance in rank_pool(2).run(twice_worker):
        assert distance < 0.25


def joined_worker(op):
    """Gradients of a rank whose other one is in join() in the second step."""
    variable = tf.Variable(tf.zeros((20, 30)))
    own = np.outer(np.arange(20.0), np.ones(30))  # Of rank 1.
    norms = []
    for _ in range(2 - ring.rank()):
        with ring.DistributedGradientTape(
            tf.GradientTape(), op=op, compression=ring.Compression.powersgd(rank=1)
        ) as tape:
            loss = tf.reduce_sum(variable * tf.constant(own, tf.float32))
        (gradient,) = tape.gradient(loss, [variable])
        norms.append(float(np.linalg.norm(gradient) / np.linalg.norm(own)))
    ring.join()
    return norms


@pytest.mark.parametrize(("op", "first"), [(ring.Sum, 2.0), (ring.Average, 1.0)])
def test_ranks_that_have_joined_bring_nothing(rank_pool, op, first):
    longer, _ = rank_pool(2).run(joined_worker, args=(op,))

    assert longer == pytest.approx([first, 1.0], rel=1e-5)


def zeros_worker():
    """Gradients with nothing in the first row and column, after one of zeros."""
    variable = tf.Variable(tf.zeros((20, 30)))
    own = np.random.default_rng(1).normal(size=(20, 1)) @ np.ones((1, 30))
    own[0], own[:, 0] = 0.0, 0.0
    tensor = tf.reshape(tf.range(600.0), (20, 30))
    for factor in (0.0, 1.0):
        with ring.DistributedGradientTape(
            tf.GradientTape(), compression=ring.Compression.powersgd(rank=1)
        ) as tape:
            tape.watch(tensor)
            loss = factor * tf.reduce_sum(variable * tf.constant(own, tf.float32))
            loss += tf.reduce_sum(tensor**2) * float(ring.rank())
        gradients = tape.gradient(loss, [variable, tensor])
    kernel, of_tensor = (gradient.numpy() for gradient in gradients)
    return float(np.abs(kernel - own).max()), bool((of_tensor == tensor).numpy().all())


def test_it_finds_back_from_zeros_and_leaves_tensors_alone(rank_pool):
    for difference, is_exact in rank_pool(2).run(zeros_worker):
        assert difference < 1e-5
        assert is_exact


def anew_worker():
    """The weights after each of three `fit`s from the same ones."""
    ring.init()
    model = build()
    compression = ring.Compression.powersgd(rank=1)
    model.compile(
        ring.DistributedOptimizer(optimizers.SGD(0.2), compression=compression), "mse"
    )
    start, ends = model.get_weights(), []
    for is_new_job in (False, False, True):
        if is_new_job:
            ring.shutdown()
            ring.init()
        model.set_weights(start)
        batches = batches_of(ring.rank(), **EVEN)
        model.fit(dataset_of(batches), verbose=0, shuffle=False)
        ends.append(training.as_bytes(model.get_weights()))
    return ends


@pytest.mark.slow
def test_who_joins_has_nothing_to_come():
    """All begin anew, also with what they have in common; and no check complains."""
    checks = {"RING_KERAS_CHECK_REDUCTIONS": "1"}
    results = run_ranks(anew_worker, 2, env=checks, timeout_s=150)

    assert results[0] == results[1]
    first, second, of_others = results[0]
    assert first != second
    assert first == of_others


def loaded_worker(directory):
    """The weights after each of two `fit`s from one file."""
    ends = []
    model = build()
    inner = optimizers.SGD(0.2, momentum=0.9)
    compression = ring.Compression.powersgd(rank=1)
    model.compile(ring.DistributedOptimizer(inner, compression=compression), "mse")
    inner.build(model.trainable_variables)
    path = f"{directory}/{ring.rank()}.weights.h5"
    model.save_weights(path)
    for _ in range(2):
        model.load_weights(path)
        batches = batches_of(ring.rank(), uneven=False, overflow=False)
        model.fit(dataset_of(batches), verbose=0, shuffle=False)
        ends.append(training.as_bytes(model.get_weights()))
    return ends


@pytest.mark.slow
def test_who_loads_a_file_owes_nothing(rank_pool, tmp_path):
    """It is of other weights."""
    for first, second in rank_pool(2).run(loaded_worker, args=(str(tmp_path),)):
        assert first == second


def same_rank_worker():
    """The error of ranks that choose differently."""
    model = build()
    powersgd = ring.Compression.powersgd(rank=1 + ring.rank())
    model.compile(ring.DistributedOptimizer("sgd", compression=powersgd), "mse")
    with pytest.raises(ring.RankMismatchError) as error:
        model.fit(dataset_of(batches_of(0, **EVEN)), verbose=0, shuffle=False)
    return str(error.value)


def test_ranks_must_choose_the_same(rank_pool):
    for text in rank_pool(2).run(same_rank_worker):
        assert "[RK311]" in text
        assert "kernel" in text


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, None])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(ValueError, match="PowerSGD's `rank` must be"):
        ring.Compression.powersgd(rank=rank)


def test_other_functions_refuse_it():
    with pytest.raises(ValueError, match="must be a Compression"):
        ring.allreduce(tf.ones(2), compression=ring.Compression.powersgd())
    with pytest.raises(ValueError, match=r"\[RK420\].*PowerSGD"):
        ring.DistributedOptimizer(
            "sgd", op=ring.Adasum, compression=ring.Compression.powersgd()
        )
