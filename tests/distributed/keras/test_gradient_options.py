"""What users may choose about the reduction of gradients."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras.optimizers.gradient_reducer import GradientReducer

LIMIT = 1e-6
STEPS = 8


def callbacks() -> list[keras.callbacks.Callback]:
    return [
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.MetricAverage(),
    ]


def difference_to_one_process(make_alone, make_optimizer, **options):
    """Trains on all ranks, and with another optimizer on this one alone."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(STEPS, size))
    model = training.build(1 + rank)
    optimizer = ring.DistributedOptimizer(make_optimizer(), **options)
    training.compile_model(model, optimizer)
    part = ring.data.shard(data, remainder="keep")
    training.fit(model, part, training.BATCH, callbacks=callbacks())
    alone = training.build(1)
    training.compile_model(alone, make_alone())
    training.fit(alone, data, training.BATCH * size)
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.as_bytes(model.get_weights()),
    )


def check(results) -> None:
    for difference, weights in results:
        assert difference <= LIMIT
        assert weights == results[0][1], "ranks differ"


def sgd(learning_rate=0.1, **kwargs):
    return keras.optimizers.SGD(learning_rate, momentum=0.9, **kwargs)


def adam(**kwargs):
    return keras.optimizers.Adam(0.01, **kwargs)


def option_worker(case):
    compare = difference_to_one_process
    if case == "predivide":
        return compare(adam, adam, gradient_predivide_factor=3.0)
    if case == "num_groups":
        return compare(adam, adam, num_groups=3)
    if case == "mean of passes":
        return compare(
            functools.partial(adam, gradient_accumulation_steps=3),
            adam,
            backward_passes_per_step=3,
            average_aggregated_gradients=True,
        )
    if case == "sum of passes":
        # Which momentum, too, sees as a learning rate as many times larger.
        return compare(
            functools.partial(sgd, 0.3, gradient_accumulation_steps=3),
            sgd,
            backward_passes_per_step=3,
        )
    if case == "clipped sum of passes":
        return compare(
            functools.partial(sgd, 0.1, gradient_accumulation_steps=2, clipnorm=0.05),
            functools.partial(sgd, 0.1, clipnorm=0.1),
            backward_passes_per_step=2,
        )
    assert case == "sum of passes, all at once"
    return compare(
        functools.partial(sgd, 0.3, gradient_accumulation_steps=3),
        sgd,
        backward_passes_per_step=3,
        num_groups=2,
        gradient_predivide_factor=0.5,
    )


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "case",
    [
        "predivide",
        "num_groups",
        "mean of passes",
        "sum of passes",
        "sum of passes, all at once",
    ],
)
@pytest.mark.slow
def test_options_match_one_process(rank_pool, size, case):
    check(rank_pool(size).run(option_worker, args=(case,)))


def one_rank_worker():
    """Passes are added up with nobody to talk to, too."""
    variable = keras.Variable([0.0])
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(1.0), backward_passes_per_step=2
    )
    for gradient in (1.0, 2.0):
        optimizer.apply([tf.constant([gradient])], [variable])
    return float(variable.numpy()[0])


def test_one_rank_sums_passes(rank_pool):
    assert rank_pool(1).run(one_rank_worker) == [-3.0]


class Counted:
    """Counts the reductions of gradients while it is in force."""

    def __enter__(self):
        self.count = 0
        self._reduce = reduce = GradientReducer.reduce

        def counting(reducer, *args, **kwargs):
            self.count += 1
            return reduce(reducer, *args, **kwargs)

        GradientReducer.reduce = counting
        return self

    def __exit__(self, *_):
        GradientReducer.reduce = self._reduce


def passes_worker(make_optimizer):
    optimizer = ring.DistributedOptimizer(make_optimizer(), backward_passes_per_step=3)
    variable = keras.Variable([0.0, 0.0])
    with Counted() as counted:
        for step in range(6):
            gradient = tf.constant([1.0, ring.rank() + step])
            optimizer.apply([optimizer.scale_loss(gradient)], [variable])
    return counted.count, variable.numpy().tolist()


def scaled_sgd():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 4.0)


@pytest.mark.parametrize(
    "make_optimizer", [functools.partial(keras.optimizers.SGD, 1.0), scaled_sgd]
)
def test_there_is_one_reduction_per_update(rank_pool, make_optimizer):
    # 6 steps of rank + step, the mean over two ranks.
    expected = (2, [-6.0, -(15 + 3.0)])
    results = rank_pool(2).run(passes_worker, args=(make_optimizer,))
    assert results == [expected] * 2


def multi_optimizer_worker():
    """Each of the optimizers inside accumulates."""
    optimizer = keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(
            keras.optimizers.SGD(1.0), {"b": keras.optimizers.SGD(2.0)}
        )
    )
    optimizer = ring.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    variables = [keras.Variable([0.0], name=name) for name in "ab"]
    for number in range(2):
        gradient = tf.constant([1.0 + ring.rank() + number])
        optimizer.apply([gradient, gradient], variables)
    return [float(variable.numpy()[0]) for variable in variables]


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none"
)
def test_passes_of_several_optimizers(rank_pool):
    assert rank_pool(2).run(multi_optimizer_worker) == [[-4.0, -8.0]] * 2


def overflow_worker(eager):
    """A gradient that is inf on one rank, in one pass."""
    optimizer = ring.DistributedOptimizer(scaled_sgd(), backward_passes_per_step=2)
    variable = keras.Variable([0.0])
    optimizer.build([variable])

    def step(gradient):
        optimizer.apply([optimizer.scale_loss(gradient)], [variable])

    step = step if eager else tf.function(step)
    for number in range(5):
        bad = number == 1 and ring.rank() == 1
        step(tf.constant([np.inf if bad else 1.0 + number]))
    return float(optimizer.dynamic_scale), float(variable.numpy()[0])


@pytest.mark.parametrize("eager", [False, True])
def test_all_ranks_skip_a_pass_that_overflows_on_one(rank_pool, eager):
    # Of the passes 1, inf, 3, 4, 5 the second counts for nobody.
    results = rank_pool(2).run(overflow_worker, args=(eager,))
    assert results == [(2.0, -(1.0 + 3.0) - (4.0 + 5.0))] * 2


def adasum_worker():
    """The update is that of the combined gradient."""
    size, rank = ring.size(), ring.rank()
    variables = [keras.Variable(np.zeros(n, np.float32)) for n in (3, 5)]
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Adasum)
    gradients = [
        tf.constant(np.random.default_rng([rank, n]).normal(size=n).astype(np.float32))
        for n in (3, 5)
    ]
    optimizer.apply(gradients, variables)
    expected = ring.grouped_allreduce(gradients, ring.Adasum)
    for variable, gradient in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), -gradient, rtol=1e-6)

    model = training.build(1 + rank)
    optimizer = ring.DistributedOptimizer(sgd(), op="adasum")
    training.compile_model(model, optimizer)
    data = training.dataset(training.steps_of(STEPS, size))
    part = ring.data.shard(data, remainder="keep")
    history = training.fit(model, part, training.BATCH, epochs=3, callbacks=callbacks())
    assert history["loss"][-1] < history["loss"][0]
    return training.as_bytes(model.get_weights())


@pytest.mark.parametrize(
    "size",
    [
        2,
        3,
        4,
    ],
)
@pytest.mark.slow
def test_adasum(rank_pool, size):
    results = rank_pool(size).run(adasum_worker)
    assert all(result == results[0] for result in results)


def groups_worker():
    """How many tensors each start takes."""
    variables = [keras.Variable(np.zeros(n, np.float32)) for n in range(1, 7)]
    counts = []
    for options in (
        {"num_groups": 2},
        {"num_groups": 20},
        {"groups": [[variables[0], variables[5]], [variables[2].value]]},
        {"bucket_size_bytes": 1},
        {},
    ):
        optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(), **options)
        optimizer.build(variables)

        @tf.function
        def step(optimizer=optimizer):
            optimizer.apply([tf.ones(v.shape) for v in variables], variables)

        operations = step.get_concrete_function().graph.get_operations()
        starts = [op for op in operations if op.type.endswith("AllreduceStart")]
        counts.append(sorted(op.get_attr("N") for op in starts))
    return counts


def test_groups_make_buckets(rank_pool):
    assert (
        rank_pool(2).run(groups_worker)
        == [[[3, 3], [1] * 6, [1, 2, 3], [1] * 6, [6]]] * 2
    )


def local_worker():
    """Of two layers, each rank trains the first by itself."""
    size, rank = ring.size(), ring.rank()
    results = []
    for options, own, shared in (
        ({}, (1.0 + rank) / size, (size + 1) / 2),
        ({"scale_local_gradients": False}, 1.0 + rank, (size + 1) / 2),
        ({"backward_passes_per_step": 2}, 2 * (1 + rank) / size, size + 1),
    ):
        # Alike on all ranks, or they would take rank 0's before the first step.
        layers = [
            keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
            for _ in range(2)
        ]
        for layer in layers:
            layer.build((None, 1))
        optimizer = ring.DistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=layers[0], **options
        )
        variables = [layer.kernel for layer in layers]
        before = [variable.numpy() for variable in variables]
        for _ in range(options.get("backward_passes_per_step", 1)):
            optimizer.apply([tf.fill([1, 2], 1.0 + rank)] * 2, variables)
        moved = [b - v.numpy() for b, v in zip(before, variables, strict=True)]
        results.append(
            np.allclose(moved[0], own, rtol=1e-5)
            and np.allclose(moved[1], shared, rtol=1e-5)
        )
    return results


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_local_layers(rank_pool, size):
    assert rank_pool(size).run(local_worker) == [[True] * 3] * size


def local_overflow_worker():
    """What overflows on one rank, in a layer of its own, all skip."""
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    variables = [layer.kernel, keras.Variable([0.0])]
    optimizer = ring.DistributedOptimizer(scaled_sgd(), local_layers=[layer])
    own = np.inf if ring.rank() == 1 else 4.0
    optimizer.apply([tf.constant([[own]]), tf.constant([4.0])], variables)
    optimizer.apply([tf.constant([[0.0]]), tf.constant([4.0])], variables)
    return float(optimizer.dynamic_scale), float(variables[1].numpy()[0])


def test_a_local_overflow_is_everybodys(rank_pool):
    assert rank_pool(2).run(local_overflow_worker) == [(2.0, -2.0)] * 2


def tape_worker():
    size, rank = ring.size(), ring.rank()
    variables = [tf.Variable([1.0]), keras.Variable([1.0]), tf.Variable([1.0])]

    def gradients_of(factor, local=None, **options):
        with ring.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            loss = factor * tf.reduce_sum(variables[0] + 2 * variables[1])
        if local is not None:
            tape.register_local_source(local)
        gradients = tape.gradient(loss, variables)
        assert gradients[2] is None
        return [float(gradient[0]) for gradient in gradients[:2]]

    mean = (size + 1) / 2
    own = 1.0 + rank
    np.testing.assert_allclose(
        gradients_of(own, gradient_predivide_factor=2.0), [mean, 2 * mean]
    )
    np.testing.assert_allclose(
        gradients_of(own, local=variables[1]), [mean, 2 * own / size], rtol=1e-6
    )
    np.testing.assert_allclose(
        gradients_of(own, local=variables[1], scale_local_gradients=False),
        [mean, 2 * own],
    )
    for averaged in (False, True):
        expected = 2 * mean + 10
        expected /= 2 if averaged else 1
        for _ in range(2):  # Sums begin anew.
            options = {
                "backward_passes_per_step": 2,
                "average_aggregated_gradients": averaged,
            }
            assert gradients_of(own, **options) == [0.0, 0.0]
            np.testing.assert_allclose(
                gradients_of(own + 10, **options), [expected, 2 * expected]
            )
    return True


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_tape(rank_pool, size):
    assert rank_pool(size).run(tape_worker) == [True] * size


class PassesStep(keras.Model):
    """Applies what the tape gives in every second step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step_number = tf.Variable(0)

    def train_step(self, data):
        x, y = data
        tape = ring.DistributedGradientTape(
            tf.GradientTape(),
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        )
        with tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        last = self.step_number.assign_add(1) % 2 == 0
        for gradient, variable in zip(gradients, variables, strict=True):
            step = tf.where(last, 0.1, 0.0)
            variable.assign_sub(step * gradient)
        return self.compute_metrics(x, y, y_pred)


def tape_in_fit_worker():
    """Uneven batches, weighted in each pass."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(STEPS, size))
    model = training.build(1 + rank, PassesStep)
    training.compile_model(model, keras.optimizers.SGD())
    part = ring.data.shard(data, remainder="keep")
    training.fit(model, part, training.BATCH, callbacks=callbacks())
    alone = training.build(1)
    training.compile_model(
        alone, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    )
    training.fit(alone, data, training.BATCH * size)
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.as_bytes(model.get_weights()),
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_passes_of_a_tape_in_fit_match_one_process(rank_pool, size):
    check(rank_pool(size).run(tape_in_fit_worker))


def built_adam() -> keras.optimizers.Optimizer:
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable([1.0])])
    return optimizer


@pytest.mark.parametrize(
    ("options", "make_optimizer", "message"),
    [
        ({"op": "max"}, sgd, r"op=ring_keras\.Average"),
        ({"gradient_predivide_factor": 0.0}, sgd, "above 0"),
        ({"gradient_predivide_factor": 2.0, "op": "sum"}, sgd, "Average alone"),
        ({"op": "adasum", "sparse_as_dense": False}, sgd, "made dense"),
        ({"num_groups": -1}, sgd, "num_groups=-1"),
        ({"num_groups": 2, "bucket_size_bytes": 9}, sgd, "give one of them"),
        ({"groups": 3}, sgd, "list of lists"),
        ({"groups": [[1]]}, sgd, "list of lists"),
        ({"backward_passes_per_step": 0}, sgd, "1 or more"),
        ({"backward_passes_per_step": 2}, built_adam, "too late"),
        (
            {"backward_passes_per_step": 2},
            functools.partial(sgd, gradient_accumulation_steps=3),
            "the same thing",
        ),
        ({"local_layers": ["dense"]}, sgd, "local_layers"),
        (
            {"local_layers": keras.layers.Dense(1)},
            functools.partial(sgd, global_clipnorm=1.0),
            "drift apart",
        ),
    ],
)
def test_contradictions_are_refused(options, make_optimizer, message):
    with pytest.raises(ValueError, match=message):
        ring.DistributedOptimizer(make_optimizer(), **options)


def test_groups_name_no_variable_twice():
    variable = tf.Variable([1.0])
    with pytest.raises(ValueError, match="in two groups"):
        ring.DistributedOptimizer(sgd(), groups=[[variable], [variable]])
    with pytest.raises(ValueError, match="`num_groups` and `groups`"):
        ring.DistributedOptimizer(sgd(), groups=[[variable]], num_groups=2)


def process_set_worker():
    """Ranks 0 and 2 train together, and rank 1 by itself."""
    sets = [ring.add_process_set([0, 2]), ring.add_process_set([1])]
    (mine,) = [process_set for process_set in sets if process_set.included()]
    data = training.dataset(training.steps_of(STEPS, mine.size()))
    model = training.build(1 + ring.rank())
    optimizer = ring.DistributedOptimizer(adam(), process_set=mine)
    training.compile_model(model, optimizer)
    part = ring.data.shard(data, remainder="keep", process_set=mine)
    callbacks = [
        ring.callbacks.BroadcastGlobalVariables(root_rank=mine.ranks[0]),
        ring.callbacks.MetricAverage(),
    ]
    training.fit(model, part, training.BATCH, callbacks=callbacks)
    alone = training.build(1 + mine.ranks[0])
    training.compile_model(alone, adam())
    training.fit(alone, data, training.BATCH * mine.size())
    for process_set in sets:
        ring.remove_process_set(process_set)
    return (
        training.largest_difference(model.get_weights(), alone.get_weights()),
        training.as_bytes(model.get_weights()),
    )


@pytest.mark.slow
def test_process_sets_train_by_themselves(rank_pool):
    first, second, third = rank_pool(3).run(process_set_worker)
    check([first, third])
    check([second])
    assert first[1] != second[1]
