"""A `fit` leaves nothing to the next one, however it has ended."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.log_texts import LogTexts

import ring_keras as ring


def ours():
    return [ring.callbacks.BroadcastGlobalVariables(), ring.callbacks.MetricAverage()]


def part(steps, **kwargs):
    """This rank's examples for so many steps, batched."""
    data = ring.data.shard(training.dataset(4 * steps * ring.size()), seed=1, **kwargs)
    return data.batch(4)


class Fails(keras.callbacks.Callback):
    """Ends `fit` with an error."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            raise ArithmeticError


def failing(model, data, batch, callbacks, **kwargs):
    with pytest.raises(ArithmeticError):
        model.fit(data, verbose=0, callbacks=[*callbacks, Fails(batch)], **kwargs)


def steps_taken(model, data, callbacks, **kwargs):
    before = int(model.optimizer.iterations)
    model.fit(data, verbose=0, callbacks=callbacks, **kwargs)
    return int(model.optimizer.iterations) - before


def resumed_worker():
    """Fits after one that went on in the middle of the second epoch."""
    model = training.distributed_model(1)
    model.fit(part(6), verbose=0, callbacks=ours())
    data = part(4)
    # Of the two steps that are done already one is never read.
    failing(model, data, 1, [ring.data.Resume(), *ours()], epochs=3)
    rest = steps_taken(model, data, [ring.data.Resume(), *ours()], epochs=3)
    after = steps_taken(model, data, ours(), epochs=1)
    alone = steps_taken(model, data, [], epochs=1)
    return rest, after, alone


def test_a_fit_after_a_resumed_one_takes_all_its_steps(rank_pool):
    assert rank_pool(2).run(resumed_worker, timeout_s=120) == [(6, 4, 4)] * 2


def rates_worker():
    """A table of rates for two steps at a time is left by a fit that failed."""
    model = training.build(1)
    training.compile_model(
        model,
        ring.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        steps_per_execution=2,
    )
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=100)
    data = part(8)
    failing(model, data, 4, [warmup, *ours()])
    other = training.distributed_model(2)
    other.fit(data, verbose=0, callbacks=[warmup])
    model.optimizer.learning_rate = 0.25
    model.fit(data, verbose=0)
    training.compile_model(model, model.optimizer)  # Traced again.
    model.fit(data, verbose=0, callbacks=ours())
    return float(model.optimizer.learning_rate)


@pytest.mark.slow
def test_rates_of_a_fit_that_failed_are_no_others(rank_pool):
    assert rank_pool(2).run(rates_worker, timeout_s=120) == [0.25, 0.25]


class TrainsByItself(keras.callbacks.Callback):
    """Takes a step between those of `fit`."""

    def on_train_batch_end(self, batch, logs=None):
        x, y = training.arrays()
        if batch == 1:
            self.model.train_on_batch(x[:4], y[:4])


def step_between_worker():
    model = training.build(1)
    training.compile_model(
        model,
        ring.DistributedOptimizer(keras.optimizers.SGD(0.5)),
        steps_per_execution=2,
    )
    warmup = ring.callbacks.LearningRateWarmup(0.1, warmup_steps=100)
    model.fit(part(6), verbose=0, callbacks=[warmup, *ours(), TrainsByItself()])
    steps = int(model.optimizer.iterations)
    return steps, float(model.optimizer.learning_rate), warmup.learning_rate_at(6)


def test_a_step_that_a_callback_takes_leaves_the_rates(rank_pool):
    for steps, rate, expected in rank_pool(2).run(step_between_worker, timeout_s=120):
        assert steps == 7
        assert rate == pytest.approx(expected)


def folds_worker():
    """Models of several folds, each evaluated in the middle of its `fit`."""
    x, y = training.arrays()
    scores = []
    for fold in range(3):
        chosen = np.arange(96) % 3 != fold
        model = training.distributed_model(fold)

        class Evaluates(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None, held=~chosen):
                if ring.rank() == 0:
                    self.model.evaluate(x[:96][held], y[:96][held], verbose=0)

        data = ring.data.shard((x[:96][chosen], y[:96][chosen]), seed=fold)
        history = model.fit(
            *data, epochs=2, batch_size=8, verbose=0, callbacks=[*ours(), Evaluates()]
        )
        scores.append(history.history["loss"])
    return scores


@pytest.mark.slow
def test_folds_follow_each_other(rank_pool):
    first, second = rank_pool(2).run(folds_worker, timeout_s=120)

    assert first == second


def turns_worker():
    """Two models trained in turns, batch by batch, beside a `fit` of each."""
    models = [training.distributed_model(seed) for seed in (1, 2)]
    x, y = (array[ring.rank() :: 2][:16] for array in training.arrays())
    for _ in range(2):
        for model in models:
            model.fit(x, y, batch_size=8, verbose=0, callbacks=ours())
        for start in (0, 4, 8):
            for model in models:
                model.train_on_batch(x[start : start + 4], y[start : start + 4])
    return [training.as_bytes(model.get_weights()) for model in models]


@pytest.mark.slow
def test_models_are_trained_in_turns(rank_pool):
    first, second = rank_pool(2).run(turns_worker, timeout_s=120)

    assert first == second


class Noise(keras.layers.Layer):
    """Takes its random numbers from what Keras keeps for each thread."""

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), stddev=0.0)


def sizes_worker():
    model = keras.Sequential([keras.Input((6,)), Noise(), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    x, y = training.arrays()
    model.fit(x[:8], y[:8], verbose=0, callbacks=ours())
    for size in (4, 4, 3, 3, 4):
        model.train_on_batch(x[:size], y[:size])
    return int(model.optimizer.iterations)


def test_batches_may_change_their_size(rank_pool):
    assert rank_pool(2).run(sizes_worker) == [6, 6]


def uneven_worker(make_data, kwargs):
    model = training.distributed_model(1)
    x, y = training.arrays()
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(
            make_data(x, y, 2 + ring.rank()),
            verbose=0,
            callbacks=[ring.callbacks.MetricAverage()],
            **kwargs,
        )
    return str(caught.value)


def generator(x, y, steps):
    for start in range(steps):
        yield x[start : start + 4], y[start : start + 4]


def of_unknown_length(x, y, steps):
    data = tf.data.Dataset.from_tensor_slices((x, y)).take(4 * steps)
    return data.filter(lambda *_: True).batch(4)


@pytest.mark.parametrize(
    ("make_data", "kwargs"),
    [
        pytest.param(generator, {"steps_per_epoch": 3}, marks=pytest.mark.slow),
        (of_unknown_length, {"steps_per_epoch": 4}),
    ],
)
def test_data_that_end_sooner_are_found_with_any_callback(rank_pool, make_data, kwargs):
    first, second = rank_pool(2).run(
        uneven_worker, args=(make_data, kwargs), timeout_s=150
    )

    assert first == second
    assert "after 2 steps of the epoch ranks [0] have run out of data" in first


def other_callbacks_worker():
    model = training.distributed_model(1)
    chosen = [] if ring.rank() else [ring.callbacks.RingMetrics()]
    with pytest.raises(ring.RankMismatchError) as caught:
        model.fit(part(2), verbose=0, callbacks=chosen)
    return str(caught.value)


def test_callbacks_of_some_ranks_only_are_named(rank_pool):
    first, second = rank_pool(2).run(other_callbacks_worker, timeout_s=150)

    assert first == second
    assert "'RingMetrics'], rank 1 has ['Broadcast" in first
    assert "callbacks of ring_keras" in first


ROWS = 5 * 8  # Of five steps of all ranks.


def each_in_one_of_two(optimizer):
    """Bias and kernel get optimizers of their own, whose gradients are reduced before
    either adds them up."""
    other = type(optimizer).from_config(optimizer.get_config())
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(optimizer, {"bias": other})
    )


def accumulating(wrap, several=False, **kwargs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(
        0.5, momentum=0.5, gradient_accumulation_steps=3, **kwargs
    )
    if several:
        optimizer = each_in_one_of_two(optimizer)
    model.compile(wrap(optimizer), loss="mse", run_eagerly=False)
    return model


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none"
)


def twice_worker(several):
    """Two fits that end between two updates, and the same in one process."""
    x, y = (array[:ROWS] for array in training.arrays())
    ours = accumulating(ring.DistributedOptimizer, several)
    alone = accumulating(lambda optimizer: optimizer, several)
    mine = [array[ring.rank() :: ring.size()] for array in (x, y)]
    for _ in range(2):
        arguments = {"shuffle": False, "verbose": 0}
        begin = [ring.callbacks.BroadcastGlobalVariables()]
        ours.fit(*mine, batch_size=8 // ring.size(), callbacks=begin, **arguments)
        alone.fit(x, y, batch_size=8, **arguments)
    return training.largest_difference(ours.get_weights(), alone.get_weights())


@pytest.mark.parametrize(
    "several", [False, pytest.param(True, marks=needs_multi_optimizer)]
)
def test_gradients_added_up_in_one_fit_are_used_in_the_next(rank_pool, several):
    assert max(rank_pool(2).run(twice_worker, args=(several,))) < 1e-6


class Restores(keras.callbacks.Callback):
    """Puts a state into the model, as a callback that reads a file does."""

    def __init__(self, variables):
        super().__init__()
        self.variables = variables

    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        variables = [*self.model.weights, *self.model.optimizer.variables]
        for variable, value in zip(variables, self.variables, strict=True):
            variable.assign(value)


def restored_worker(ranks):
    """What an update uses after one rank's state was restored in between."""
    x, y = (array[ring.rank() : ROWS : ring.size()] for array in training.arrays())
    model = accumulating(ring.DistributedOptimizer)
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(x, y, **arguments)
    saved = [v.numpy() for v in [*model.weights, *model.optimizer.variables]]
    saved = ring.broadcast_object([value.tolist() for value in saved])
    again, fresh = (accumulating(ring.DistributedOptimizer) for _ in range(2))
    restores = [Restores(saved)] if ring.rank() in ranks else []
    with LogTexts() as texts:
        # Two steps are in the accumulators; the next one makes the update.
        again.fit(x[:4], y[:4], callbacks=restores, **arguments)
    said = [text for text in texts if "RK332" in text]
    without = [
        value if "accumulator" not in name else np.zeros_like(value).tolist()
        for name, value in zip(
            [v.name for v in [*model.weights, *model.optimizer.variables]],
            saved,
            strict=True,
        )
    ]
    fresh.fit(x[:4], y[:4], callbacks=[Restores(without)], **arguments)
    return len(said), training.largest_difference(
        again.get_weights(), fresh.get_weights()
    )


@pytest.mark.parametrize("ranks", [[0], [0, 1]])
@pytest.mark.slow
def test_what_one_rank_has_added_up_is_not_everyones(rank_pool, ranks):
    results = rank_pool(2).run(restored_worker, args=(ranks,))

    assert [said for said, _ in results] == [1, 0]
    assert max(difference for _, difference in results) < 1e-7


def restored_sums_worker():
    """What an update uses after the sums of reduced gradients were restored."""
    x, y = (array[ring.rank() : ROWS : ring.size()] for array in training.arrays())
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0}
    model = accumulating(ring.DistributedOptimizer, several=True)
    model.fit(x, y, **arguments)
    saved = [v.numpy() for v in [*model.weights, *model.optimizer.variables]]
    again = accumulating(ring.DistributedOptimizer, several=True)
    restores = [] if ring.rank() else [Restores(saved)]
    begin = ring.callbacks.BroadcastGlobalVariables()
    with LogTexts() as texts:
        again.fit(x[:4], y[:4], callbacks=[*restores, begin], **arguments)
    model.fit(x[:4], y[:4], **arguments)
    said = [text for text in texts if "RK332" in text]
    return said, training.largest_difference(again.get_weights(), model.get_weights())


@needs_multi_optimizer
def test_sums_of_reduced_gradients_are_everyones(rank_pool):
    for said, difference in rank_pool(2).run(restored_sums_worker):
        assert not said
        assert difference < 1e-7


def momentum_worker():
    """What an optimizer keeps for a layer that each rank trains by itself."""
    keras.utils.set_random_seed(1)
    own = keras.layers.Dense(1, name="own")
    # Earlier tests may have made more models on one rank.
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(2, name="o"), own], name="model"
    )
    model.compile(
        ring.DistributedOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9), local_layers=[own]
        ),
        loss="mse",
    )
    x, y = (array[ring.rank() : ROWS : ring.size()] for array in training.arrays())
    model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
    kept = {v.name: v.numpy() for v in model.optimizer.variables}
    model.optimizer.learning_rate = 0.0  # The next step lets momentum decay alone.
    model.fit(x[:4], y[:4], verbose=0)
    after = {v.name: v.numpy() for v in model.optimizer.variables}
    return {
        name: (kept[name].tolist(), np.allclose(after[name], 0.9 * kept[name]))
        for name in kept
        if "momentum" in name
    }


def test_momentum_of_local_layers_stays_local(rank_pool):
    first, second = rank_pool(2).run(momentum_worker)

    local = [name for name in first if "own_" in name]
    assert len(local) == 2
    for name in first:
        assert (first[name][0] == second[name][0]) == (name not in local), name
        assert first[name][1] and second[name][1], name
