"""Optimizers wherever a model keeps them, and those that nobody found."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from support import training

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.callbacks.backup_files import BackupFiles


class InContainers(keras.Model):
    """Keeps its optimizers in a list and in a dict; the second layer has Adam's
    state, which must begin alike too."""

    def __init__(self, seed, **options):
        super().__init__()
        keras.utils.set_random_seed(seed)
        self.parts = [keras.layers.Dense(3), keras.layers.Dense(1)]
        self.optimizers = [keras.optimizers.SGD(0.01, **options)]
        self.others = {"second": {"its": keras.optimizers.Adam(0.01, **options)}}

    def call(self, x):
        return self.parts[1](self.parts[0](x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        for layer, optimizer in zip(
            self.parts, (self.optimizers[0], self.others["second"]["its"]), strict=True
        ):
            variables = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def containers_worker(jit_compile, distributed=(), epochs=1, **options):
    """Compares weights with those of one process."""
    size, rank = ring.size(), ring.rank()
    data = training.dataset(training.steps_of(6, size))
    models = InContainers(1 + rank, **options), InContainers(1, **options)
    for model in models:
        model.compile(jit_compile=jit_compile)
    for index in distributed:
        ring.DistributedOptimizer(models[0].optimizers[index])
    training.fit(
        models[0],
        ring.data.shard(data, remainder="keep"),
        training.BATCH,
        callbacks=[] if distributed else [ring.callbacks.Distributed()],
        epochs=epochs,
    )
    training.fit(models[1], data, training.BATCH * size, epochs=epochs)
    return training.largest_difference(*(model.get_weights() for model in models))


def test_optimizers_in_containers_train_together(rank_pool):
    assert max(rank_pool(2).run(containers_worker, args=(False,))) <= 1e-6


def test_one_that_is_distributed_brings_the_others(rank_pool):
    assert max(rank_pool(2).run(containers_worker, args=(False, (0,)))) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_that_accumulate_update_in_one_order(rank_pool, jit_compile):
    """Each reduces in a conditional, and TensorFlow runs those as it likes."""
    differences = rank_pool(2).run(
        containers_worker,
        args=(jit_compile,),
        kwargs={"epochs": 8, "gradient_accumulation_steps": 2},
    )

    assert max(differences) <= 1e-6


def set_of_one_worker():
    """Rank 0 trains alone, and one of its optimizers says so."""
    sets = [ring.add_process_set([rank]) for rank in range(2)]
    if ring.rank() == 0:
        model = InContainers(1)
        model.compile()
        ring.DistributedOptimizer(model.optimizers[0], process_set=sets[0])
        training.fit(
            model, training.dataset(8), 4, callbacks=[ring.callbacks.MetricAverage()]
        )
        training.fit(
            model, training.dataset(8), 4, callbacks=[ring.callbacks.Distributed()]
        )
    ring.barrier()
    for process_set in sets:
        ring.remove_process_set(process_set)


def test_the_others_are_for_the_same_ranks(rank_pool):
    rank_pool(2).run(set_of_one_worker, timeout_s=40)


class AppliesByItself(keras.optimizers.SGD):
    """Leaves out what the hook waits for."""

    def _backend_apply_gradients(self, grads, trainable_variables):
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)


def never_reduced_worker():
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer(AppliesByItself(0.1)))
    with pytest.raises(ring.RingKerasError, match="that no rank has reduced"):
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )


def test_a_hook_that_is_never_reached_is_noticed(rank_pool):
    rank_pool(2).run(never_reduced_worker)


def test_other_options_for_the_same_optimizer_are_refused():
    optimizer = ring.DistributedOptimizer("sgd", op=ring.Sum)

    assert ring.DistributedOptimizer(optimizer, op="sum") is optimizer
    with pytest.raises(ValueError, match=r"op=.*average.*before op=.*sum"):
        ring.DistributedOptimizer(optimizer)
    wrapper = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"bucket_size_bytes=4096, and before"):
        ring.DistributedOptimizer(wrapper, op=ring.Sum, bucket_size_bytes=4096)


class Adversaries(keras.Model):
    """Two networks with an optimizer each, beside the one that Keras makes."""

    def __init__(self, rates=(0.01, 0.01), times=1):
        super().__init__()
        keras.utils.set_random_seed(1)
        self.networks = [keras.layers.Dense(1), keras.layers.Dense(1)]
        for network in self.networks:
            network.build((None, 6))
        self.built = True
        self.times = times
        self.rates = rates

    def compile(self):
        super().compile()
        self.first, self.second = (keras.optimizers.SGD(r) for r in self.rates)
        for optimizer, network in zip(self.both, self.networks, strict=True):
            optimizer.build(network.trainable_variables)

    @property
    def both(self):
        return self.first, self.second

    def train_step(self, data):
        x, y = data
        for network, optimizer in zip(self.networks, self.both, strict=True):
            for _ in range(self.times if optimizer is self.first else 1):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(network(x) - y))
                variables = network.trainable_variables
                optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def adversaries(**kwargs):
    model = Adversaries(**kwargs)
    model.compile()
    return model


def rates_worker(per_execution):
    """A ramp reaches the optimizers that train, and what it cannot set is said."""
    data = ring.data.shard(training.dataset(4 * 4 * ring.size()))
    model = adversaries()
    model.steps_per_execution = per_execution
    warmup = ring.callbacks.Distributed(base_lr=0.1, warmup_epochs=2)
    history = training.fit(model, data, 4, epochs=3, callbacks=[warmup])
    rates = [float(one.learning_rate) for one in (*model.both, model.optimizer)]
    errors = []
    for others in ({"rates": (0.01, 0.02)}, {"times": 5}):
        try:
            callbacks = [ring.callbacks.Distributed(base_lr=0.1, warmup_epochs=2)]
            training.fit(adversaries(**others), data, 4, callbacks=callbacks)
        except ValueError as error:
            errors.append(str(error))
    return history["learning_rate"], rates, errors


@pytest.mark.slow
@pytest.mark.parametrize("per_execution", [2, 1])
def test_a_ramp_is_that_of_the_optimizers_that_train(rank_pool, per_execution):
    for logged, rates, errors in rank_pool(2).run(rates_worker, args=(per_execution,)):
        assert rates == pytest.approx([0.2, 0.2, 0.001])
        assert logged == pytest.approx([0.1 + 0.1 * 3 / 8, 0.1 + 0.1 * 7 / 8, 0.2])
        assert ["RK621" in error for error in errors] == [True, True]
        assert "'sgd" in errors[0] and "0.02" in errors[0]
        assert "[5, 1]" in errors[1]


class SetsEpoch(keras.callbacks.Callback):
    """As BackupAndRestore does."""

    def on_train_begin(self, logs=None):
        self.model._initial_epoch = 1


class Epochs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.run = []

    def on_epoch_end(self, epoch, logs=None):
        self.run.append(epoch)


def resumed_adversaries_worker():
    """The epochs that are run, by models with optimizers of their own."""
    data = ring.data.shard(training.dataset(4 * 4 * ring.size()))
    model, epochs = adversaries(), Epochs()
    for number in (2, 3):
        callbacks = [ring.data.Resume(), ring.callbacks.Distributed(), epochs]
        training.fit(model, data, 4, epochs=number, callbacks=callbacks)
    others = Epochs()
    callbacks = [SetsEpoch(), ring.data.Resume(), ring.callbacks.Distributed(), others]
    training.fit(adversaries(), data, 4, epochs=2, callbacks=callbacks)
    uneven = adversaries(times=2)
    training.fit(uneven, data, 4, callbacks=[ring.callbacks.Distributed()])
    with pytest.raises(ValueError, match=r"RK512.*different numbers, from 4 to 8"):
        callbacks = [ring.data.Resume(), ring.callbacks.Distributed()]
        training.fit(uneven, data, 4, epochs=2, callbacks=callbacks)
    return epochs.run, others.run


@pytest.mark.slow
def test_models_with_their_own_optimizers_resume(rank_pool):
    assert rank_pool(2).run(resumed_adversaries_worker) == [([0, 1, 2], [1])] * 2


def restored_adversaries_worker(directory):
    """The state of an optimizer of the model's own, from a backup."""
    files = BackupFiles(f"{directory}/{ring.rank()}")
    saved = adversaries()
    saved.first.iterations.assign(7)
    files.save(internals.weights_file(saved), internals.steps_done_of(saved))
    restored = adversaries()
    files.restore(restored)
    unbuilt = adversaries()
    unbuilt.second = keras.optimizers.SGD(0.01)
    with pytest.raises(ring.RingKerasError, match="RK334"):
        files.restore(unbuilt)
    return int(restored.first.iterations), internals.steps_done_of(restored)


def test_backups_have_each_optimizer(rank_pool, tmp_path):
    results = rank_pool(2).run(restored_adversaries_worker, args=(str(tmp_path),))

    assert results == [(7, 7)] * 2


def late(gradients, rank):
    """The same gradients, on one rank a good while later."""
    if ring.rank() != rank:
        return gradients
    factor = tf.random.stateless_normal([300, 300], [1, 2])
    _, product = tf.while_loop(
        lambda count, _: count < 30,
        lambda count, product: (count + 1, tf.tanh(product @ factor)),
        (0, factor),
    )
    return [gradient + 0 * tf.reduce_sum(product) for gradient in gradients]


class Alternates(keras.Model):
    """Applies the gradients of one optimizer, or of both, in a condition."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))

        def apply(number):
            variables = self.layers[number - 2].trainable_variables
            # Else both ranks would begin with the same one by themselves.
            gradients = late(tape.gradient(loss, variables), rank=number)
            self.both[number].apply(gradients, variables)

        for number in (0, 1):
            if number in self.in_condition:
                is_due = self.both[0].iterations % 2 == 0
                tf.cond(is_due, lambda n=number: apply(n), lambda: None)
            else:
                apply(number)
        return {"loss": loss}


MAKERS = {
    "plain": lambda: ring.DistributedOptimizer(keras.optimizers.SGD(0.1)),
    "accumulating": lambda: ring.DistributedOptimizer(
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    ),
    "far apart": lambda: ring.DiLoCo(keras.optimizers.SGD(0.1), sync_every=2),
    "sharded": lambda: ring.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), shard_state=True
    ),
    "several": lambda: ring.DistributedOptimizer(
        keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(
                keras.optimizers.SGD(0.1), {".*bias": keras.optimizers.Adam(0.01)}
            )
        )
    ),
}


def alternating_worker(kinds, in_condition):
    model = training.build(1, Alternates)
    model.both = [MAKERS[kind]() for kind in kinds]
    model.in_condition = in_condition
    model.compile("sgd", "binary_crossentropy")
    training.fit(model, ring.data.shard(training.dataset(64)), 4)
    return training.as_bytes(model.get_weights())


@pytest.mark.parametrize(
    ("kinds", "in_condition"),
    [
        (("plain", "plain"), (1,)),
        pytest.param(("far apart", "far apart"), (1,), marks=pytest.mark.slow),
        pytest.param(("plain", "plain"), (0,), marks=pytest.mark.slow),
        pytest.param(
            ("several", "several"),
            (1,),
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    not hasattr(keras.optimizers, "MultiOptimizer"),
                    reason="older Keras",
                ),
            ],
        ),
        pytest.param(("accumulating", "plain"), (0, 1), marks=pytest.mark.slow),
        pytest.param(("sharded", "accumulating"), (1,), marks=pytest.mark.slow),
        pytest.param(("far apart", "plain"), (0,), marks=pytest.mark.slow),
    ],
)
def test_optimizers_in_conditions_reduce_in_one_order(rank_pool, kinds, in_condition):
    args = (kinds, in_condition)
    first, second = rank_pool(2).run(alternating_worker, args=args, timeout_s=60)

    assert first == second
