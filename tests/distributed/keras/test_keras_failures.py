"""What goes wrong in fit() is named, on every rank."""

from __future__ import annotations

import functools
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import training
from support.run_ranks import run_ranks

import ring_keras as ring


def different_models_worker():
    """Rank 1's second layer is wider; then all train the same again."""
    rank = ring.rank()
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1 + rank)]
    )
    model.compile(ring.DistributedOptimizer("sgd"), "mse")
    with pytest.raises(ring.RankMismatchError) as in_step:
        training.fit(model, training.dataset(8), 4)
    with pytest.raises(ring.RankMismatchError) as in_broadcast:
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    same = training.build(1)
    training.compile_model(same, ring.DistributedOptimizer("sgd"))
    callbacks = [ring.callbacks.BroadcastGlobalVariables()]
    training.fit(same, training.dataset(8), 4, callbacks=callbacks)
    return str(in_step.value), str(in_broadcast.value)


def test_different_models_are_named(rank_pool):
    results = rank_pool(2).run(different_models_worker)

    assert results[0] == results[1]
    for message in results[0]:
        assert "rank 0 has" in message and "rank 1 has" in message
        assert "[8, 1]" in message and "[8, 2]" in message


class OtherGenerators(keras.Model):
    """Has no `call`: its variables are made by tracing its step."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(3 + ring.rank())

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.layer(data[0])))
        variables = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def mismatch_in_tracing_worker():
    model = OtherGenerators()
    model.compile(ring.DistributedOptimizer("sgd"))
    with pytest.raises(ring.RankMismatchError) as caught:
        training.fit(
            model,
            training.dataset(8),
            4,
            callbacks=[ring.callbacks.BroadcastGlobalVariables()],
        )
    return str(caught.value)


def test_a_mismatch_found_in_tracing_is_named(rank_pool):
    for message in rank_pool(2).run(mismatch_in_tracing_worker):
        assert "[6, 3]" in message and "[6, 4]" in message


class Dies(keras.callbacks.Callback):
    """Kills rank 1 after its second step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and ring.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def lost_peer_worker():
    ring.init()
    model = training.build(1)
    training.compile_model(model, ring.DistributedOptimizer("sgd"))
    training.fit(
        model,
        ring.data.shard(training.dataset(64)),
        4,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), Dies()],
    )


def test_a_lost_rank_ends_fit_with_its_name():
    first, second = run_ranks(lost_peer_worker, 2, check=False, timeout_s=90)

    assert second.signal == signal.SIGKILL
    assert first.exception_type == "PeerLostError", first.describe()
    assert "rank 1" in first.message
    assert str(second.pid) in first.message


def checked(x, y):
    return tf.debugging.check_numerics(x, "img_0042 is no image"), y


def bad_part(known):
    """Rank 1 has one bad record, in its third batch."""
    x, y = (array[:40].copy() for array in training.arrays())
    if ring.rank() == 1:
        x[9] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, y)).map(checked)
    return data if known else data.filter(lambda *_: True)


class RaisesInMetric(keras.metrics.Mean):
    """Fails on rank 1 when it has seen some batches; nothing waits for it."""

    def __init__(self):
        super().__init__(name="raises")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(1.0)
        last = 3.0 if ring.rank() == 1 else 1e9
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.convert_to_tensor(self.seen), last, "label")]
        ):
            return super().update_state(tf.identity(y_pred))


class RaisesInLayer(keras.layers.Layer):
    """The same, between two layers that need all ranks' moments."""

    def build(self, input_shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.seen.assign_add(1.0)
        last = 3.0 if ring.rank() == 1 else 1e9
        with tf.control_dependencies(
            [tf.debugging.assert_less(tf.convert_to_tensor(self.seen), last, "label")]
        ):
            return tf.identity(inputs)


IN_A_LAYER = ("layer", "accumulation")


def normalized():
    return training.assemble(
        1,
        lambda: [
            keras.layers.BatchNormalization(synchronized=True),
            RaisesInLayer(),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1, activation="sigmoid"),
        ],
        None,
    )


def with_outputs_of_all(targets, outputs):
    """A loss with a collective of its own."""
    own = keras.losses.binary_crossentropy(targets, outputs)
    return own + 0.1 * tf.reduce_mean(ring.allgather(outputs))


def caught_worker(kind):
    """A fit that fails on one rank is caught; the next trains."""
    passes = {"accumulation": 3, "scaled": 2}.get(kind)
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=passes)
    if kind == "scaled":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model = training.compile_model(
        normalized() if kind in IN_A_LAYER else training.build(1),
        ring.DistributedOptimizer(optimizer),
        jit_compile=kind == "compiled",
        steps_per_execution=2 if kind == "execution of two" else 1,
    )
    if kind == "metric":
        model.compile(
            model.optimizer,
            "binary_crossentropy",
            metrics=[RaisesInMetric()],
            jit_compile=False,  # Under XLA it raises nothing.
        )
    if kind == "gather":
        model.compile(model.optimizer, with_outputs_of_all, jit_compile=False)
    data = training.dataset(40)
    if kind not in (*IN_A_LAYER, "metric"):
        data = bad_part(known=kind != "unknown length")
    caught = []
    for _ in range(2):  # It fails again.
        try:
            training.fit(model, data, 4, epochs=3)
        except Exception as error:
            caught.append(f"{type(error).__name__}: {error}")
    good = training.distributed_model(3)
    history = training.fit(good, ring.data.shard(training.dataset(48)), 4, epochs=2)
    return caught, good.get_weights(), history


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("unknown length", marks=pytest.mark.slow),
        "layer",
        pytest.param("metric", marks=pytest.mark.slow),
        pytest.param("known length", marks=pytest.mark.slow),
        pytest.param("compiled", marks=pytest.mark.slow),
        pytest.param("execution of two", marks=pytest.mark.slow),
        pytest.param("accumulation", marks=pytest.mark.slow),
        "gather",
        pytest.param("scaled", marks=pytest.mark.slow),
    ],
)
def test_a_fit_that_fails_on_one_rank_can_be_caught(rank_pool, kind, size):
    worker = functools.partial(caught_worker, kind=kind)
    results = rank_pool(size).run(worker, timeout_s=150)

    model = training.compile_model(training.build(3), training.OPTIMIZERS["sgd"]())
    history = training.fit(model, training.dataset(48), 4 * size, epochs=2)
    cause = "label" if kind in (*IN_A_LAYER, "metric") else "img_0042 is no image"
    for rank, (caught, weights, theirs) in enumerate(results):
        assert len(caught) == 2
        for message in caught:
            assert cause in message
            if rank != 1:
                assert message.startswith("RankMismatchError: [RK310] "), message
                assert "rank 1 cannot take part: its fit() raised Invalid" in message
        assert training.largest_difference(weights, model.get_weights()) < 1e-6
        assert training.history_difference(theirs, history) < 1e-6


def fails_on(hook, rank):
    """A callback that raises there, in the second call of the hook."""

    class Fails(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.calls = 0

    def run(self, *args, **kwargs):
        self.calls += 1
        is_second = self.calls == (1 if hook.startswith("on_train_") else 2)
        if ring.rank() == rank and (
            is_second or hook in ("on_test_begin", "on_test_end")
        ):
            raise OSError(f"no space left in {hook}")

    setattr(Fails, hook, run)
    return Fails()


class FailsBetweenEpochs(keras.utils.PyDataset):
    """Data that cannot be shuffled anew, on rank 1, after the first epoch."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = training.arrays()
        return x[:4], y[:4]

    def on_epoch_end(self):
        self.epochs += 1
        if ring.rank() == 1 and self.epochs > 1:
            raise OSError("the share is gone")


def failing_data_worker():
    model = training.distributed_model(1)
    with pytest.raises((OSError, ring.RankMismatchError)) as caught:
        model.fit(FailsBetweenEpochs(), epochs=3, verbose=0)
    ring.barrier()
    return str(caught.value)


def test_data_that_fail_between_epochs_on_one_rank_end_all(rank_pool):
    first, second = rank_pool(2).run(failing_data_worker, timeout_s=60)

    assert second == "the share is gone"
    assert "rank 1 cannot take part: its fit() raised OSError: the share is" in first


def uncaught_data_worker():
    ring.init()
    training.distributed_model(1).fit(FailsBetweenEpochs(), epochs=3, verbose=0)


def test_data_that_fail_on_one_rank_end_the_job():
    first, second = run_ranks(uncaught_data_worker, 2, check=False, timeout_s=90)

    assert second.exception_type == "OSError", second.describe()
    assert "the share is gone" in first.message, first.describe()
    for outcome in (first, second):
        assert outcome.exception_type, outcome.describe()
        assert not outcome.signal, outcome.describe()


def failing_evaluation_worker(add_callback):
    """Rank 1's part cannot be evaluated; then all evaluate theirs."""
    model = training.distributed_model(1)
    part = ring.data.shard(training.dataset(48)).batch(4)
    caught = []
    for _ in range(2):
        callbacks = [add_callback(), fails_on("on_test_batch_end", rank=1)]
        try:
            model.evaluate(part, verbose=0, callbacks=callbacks)
        except (OSError, ring.RankMismatchError) as error:
            caught.append(str(error))
    values = model.evaluate(part, verbose=0, callbacks=[add_callback()])
    training.fit(model, ring.data.shard(training.dataset(48)), 4)
    return caught, values


@pytest.mark.parametrize(
    "add_callback",
    [
        ring.callbacks.Distributed,
        pytest.param(ring.callbacks.MetricAverage, marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_that_fails_on_one_rank_ends_all(rank_pool, add_callback):
    worker = functools.partial(failing_evaluation_worker, add_callback)
    first, second = rank_pool(2).run(worker, timeout_s=60)

    own = "no space left in on_test_batch_end"
    assert second[0] == [own] * 2
    assert len(first[0]) == 2
    for message in first[0]:
        told = f"rank 1 cannot take part: its evaluate() raised OSError: {own}"
        assert told in message
    assert first[1] == second[1]


HOOKS = [
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_end",
    "on_epoch_end",
    "on_train_end",
]


def failing_callbacks_worker(directory):
    """One rank's callbacks fail; then all train, evaluate and step together."""
    model = training.distributed_model(1)
    part = ring.data.shard(training.dataset(48)).batch(4)
    x, y = training.arrays()
    caught = {}
    for hook in HOOKS:
        caught[hook] = []
        preemption = ring.callbacks.Preemption(f"{directory}/{hook}")
        for _ in range(2):  # The second time before any step, in some hooks.
            callbacks = [
                fails_on(hook, rank=1),
                preemption,
                ring.callbacks.TensorBoard(f"{directory}/{hook}/logs"),
            ]
            try:
                model.fit(
                    part, epochs=3, verbose=0, validation_data=part, callbacks=callbacks
                )
            except (OSError, ring.RankMismatchError) as error:
                caught[hook].append(f"{type(error).__name__}: {error}")
        # Steps of no `fit` go on at once.
        model.train_on_batch(x[:8], y[:8])
    good = training.distributed_model(3)
    history = good.fit(part, epochs=2, shuffle=False, verbose=0).history
    return caught, good.get_weights(), history


def test_a_callback_that_fails_on_one_rank_ends_all(rank_pool, tmp_path):
    results = rank_pool(2).run(
        failing_callbacks_worker, args=(str(tmp_path),), timeout_s=100
    )

    model = training.compile_model(training.build(3), training.OPTIMIZERS["sgd"]())
    history = training.fit(model, training.dataset(48), 8, epochs=2)
    for hook in HOOKS:
        own = f"OSError: no space left in {hook}"
        told = f"rank 1 cannot take part: its fit() raised {own}"
        assert results[1][0][hook] == [own] * 2
        assert len(results[0][0][hook]) == 2
        for message in results[0][0][hook]:
            assert message.startswith("RankMismatchError: [RK310] "), message
            assert told in message
    for _, weights, theirs in results:
        assert training.largest_difference(weights, model.get_weights()) < 1e-6
        assert training.history_difference(theirs, history) < 1e-6


class Evaluates(keras.callbacks.Callback):
    """At the end of an epoch, on data that rank 1 cannot evaluate."""

    def __init__(self, part, wraps):
        super().__init__()
        self.part = part
        self.wraps = wraps

    def on_epoch_end(self, epoch, logs=None):
        callbacks = [
            ring.callbacks.MetricAverage(),
            fails_on("on_test_batch_end", rank=1),
        ]
        try:
            self.model.evaluate(self.part, verbose=0, callbacks=callbacks)
        except Exception as error:
            if self.wraps:
                raise RuntimeError("the evaluation failed") from error
            raise


TOLD_ONCE = [
    "end of an evaluation",
    "ours",
    "nested",
    "wrapped",
    "handled",
    "interrupted",
]


class RaisesFromItself(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if ring.rank() == 1:
            error = OSError("no space left")
            raise error from error


class Interrupted(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if ring.rank() == 1:
            raise KeyboardInterrupt


class RaisesOurs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if ring.rank() == 1:
            raise ring.RingKerasError("[RK520] the topic is gone")


def told_once_worker():
    """One rank fails, one way after the other, in one model."""
    model = training.distributed_model(1)
    part = ring.data.shard(training.dataset(48)).batch(4)
    return {kind: told_once(model, part, kind) for kind in TOLD_ONCE}


def told_once(model, part, kind):
    """One rank fails in a `fit` or an evaluation; then all go on with their steps."""
    caught = []
    try:
        if kind == "end of an evaluation":
            average = ring.callbacks.MetricAverage()
            callbacks = [average, fails_on("on_test_end", rank=1)]
            model.evaluate(part, verbose=0, callbacks=callbacks)
        else:
            fails = {
                "ours": RaisesOurs,
                "handled": RaisesFromItself,
                "interrupted": Interrupted,
            }.get(kind, functools.partial(Evaluates, part, kind == "wrapped"))()
            model.fit(part, verbose=0, callbacks=[fails])
    except (Exception, KeyboardInterrupt) as error:
        caught.append(str(error))
        if kind == "handled":  # It fails again, where the program handles that.
            with pytest.raises((OSError, ring.RankMismatchError)) as again:
                model.fit(part, verbose=0, callbacks=[RaisesFromItself()])
            caught = [str(again.value)]
    x, y = training.arrays()
    for _ in range(3):
        model.train_on_batch(x[:8], y[:8])
    model.fit(part, verbose=0)
    return caught, training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_a_failure_is_told_once_and_not_to_what_follows(rank_pool):
    both = rank_pool(2).run(told_once_worker, timeout_s=60)

    for kind in TOLD_ONCE:
        (first, weights), (second, others) = (of_rank[kind] for of_rank in both)
        assert len(first) == len(second) == 1, (kind, first, second)
        assert "rank 1 cannot take part: its " in first[0] or kind == "wrapped"
        assert weights == others, kind


class RaisesTheSame(keras.callbacks.Callback):
    """As what waits for a thread that has failed does."""

    def __init__(self):
        super().__init__()
        self.error = OSError("the thread is gone")

    def on_epoch_begin(self, epoch, logs=None):
        if ring.rank() == 1:
            raise self.error


def same_error_worker():
    model = training.distributed_model(1)
    fails = RaisesTheSame()
    caught = []
    for _ in range(2):
        part = ring.data.shard(training.dataset(48)).batch(4)
        with pytest.raises((OSError, ring.RankMismatchError)) as error:
            model.fit(part, verbose=0, callbacks=[fails])
        caught.append(str(error.value))
    ring.barrier()
    return caught


def test_one_error_in_two_calls_is_told_twice(rank_pool):
    first, second = rank_pool(2).run(same_error_worker, timeout_s=60)

    assert second == ["the thread is gone"] * 2
    for message in first:
        assert "rank 1 cannot take part: its fit() raised OSError" in message


class FailsLater(keras.callbacks.Callback):
    """In the second evaluation, on rank 1."""

    def __init__(self):
        super().__init__()
        self.evaluations = 0

    def on_test_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and self.evaluations:
            raise OSError("the share is gone")

    def on_test_end(self, logs=None):
        self.evaluations += 1


def one_list_worker():
    model = training.distributed_model(1)
    part = ring.data.shard(training.dataset(48)).batch(4)
    callbacks = keras.callbacks.CallbackList(
        [ring.callbacks.MetricAverage(), FailsLater()], model=model
    )
    model.evaluate(part, verbose=0, callbacks=callbacks)
    with pytest.raises((OSError, ring.RankMismatchError)) as caught:
        model.evaluate(part, verbose=0, callbacks=callbacks)
    ring.barrier()
    return str(caught.value)


def test_one_list_of_callbacks_serves_two_evaluations(rank_pool):
    first, second = rank_pool(2).run(one_list_worker, timeout_s=60)

    assert second == "the share is gone"
    assert "rank 1 cannot take part: its evaluate() raised OSError" in first


class FailsAtOnce(keras.utils.PyDataset):
    """Data of which rank 1 cannot read the first batch, as Keras does early."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if ring.rank() == 1:
            raise OSError("no first batch")
        x, y = training.arrays()
        return x[:4], y[:4]


class FailsInSetModel(keras.callbacks.Callback):
    def set_model(self, model):
        super().set_model(model)
        if ring.rank() == 1:
            raise OSError("no first batch")


class FailsInBegin(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if ring.rank() == 1:
            raise OSError("no first batch")


class EvaluatesAtOnce(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        average = ring.callbacks.MetricAverage()
        self.model.evaluate(FailsAtOnce(), verbose=0, callbacks=[average])


def without_last_column(x, y):
    return x[:-1], y


def early_failure(kind):
    """Fails on rank 1 before its first step; the model's kind, and the call."""
    data = training.dataset(24)
    good = data.batch(4)
    bad = data.map(without_last_column) if ring.rank() == 1 else data
    average = ring.callbacks.MetricAverage()

    def train(model, data, callbacks=()):
        model.fit(data, verbose=0, callbacks=list(callbacks))

    def train_wrongly(model):
        arguments = {"no_such": 1} if ring.rank() == 1 else {}
        model.fit(good, verbose=0, **arguments)

    def evaluate(model, data, callbacks=()):
        model.evaluate(data, verbose=0, callbacks=[average, *callbacks])

    def train_uncompiled(model):
        if ring.rank() == 1:
            model = training.build(1)
        train(model, good)

    return {
        "shape": lambda model: train(model, bad.batch(4)),
        "arguments": train_wrongly,
        "not compiled": train_uncompiled,
        "data": lambda model: train(model, FailsAtOnce()),
        "callback": lambda model: train(model, good, [FailsInSetModel()]),
        "listed": lambda model: train(
            model, good, [average, FailsInBegin(), ring.callbacks.Preemption("none")]
        ),
        "evaluated data": lambda model: evaluate(model, FailsAtOnce()),
        "evaluated in fit": lambda model: train(model, good, [EvaluatesAtOnce()]),
        "evaluating callback": lambda model: evaluate(model, good, [FailsInSetModel()]),
    }[kind]


def early_failures_worker(kinds, compiled):
    """Calls fail before the ranks have met; then all train together."""
    caught = {kind: fail_early(kind, compiled) for kind in kinds}
    good = training.distributed_model(3)
    part = ring.data.shard(training.dataset(48))
    history = training.fit(good, part, 4, epochs=2)
    good.evaluate(part.batch(4), verbose=0, callbacks=[ring.callbacks.MetricAverage()])
    return caught, good.get_weights(), history


def fail_early(kind, compiled):
    """Fails twice, each time with a new model."""
    fails = early_failure(kind)
    caught = []
    for _ in range(2):
        optimizer = training.OPTIMIZERS["sgd"]()
        if kind != "listed":
            optimizer = ring.DistributedOptimizer(optimizer)
        model = training.compile_model(
            training.build(1), optimizer, jit_compile=compiled
        )
        try:
            fails(model)
        except Exception as error:
            caught.append(f"{type(error).__name__}: {error}")
    return caught


@pytest.mark.parametrize(
    ("kinds", "compiled"),
    [
        (["arguments", "data", "evaluated data"], False),
        pytest.param(
            [
                *("shape", "not compiled", "callback", "listed"),
                *("evaluated in fit", "evaluating callback"),
            ],
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param(["shape"], True, marks=pytest.mark.slow),
    ],
    ids=["some", "others", "compiled"],
)
def test_a_failure_before_the_ranks_have_met_is_told(rank_pool, kinds, compiled):
    worker = functools.partial(early_failures_worker, kinds, compiled)
    results = rank_pool(2).run(worker, timeout_s=100)

    model = training.compile_model(training.build(3), training.OPTIMIZERS["sgd"]())
    history = training.fit(model, training.dataset(48), 8, epochs=2)
    for rank, (everything, weights, theirs) in enumerate(results):
        for kind, caught in everything.items():
            method = "evaluate" if kind.startswith("evaluat") else "fit"
            assert len(caught) == 2, (kind, caught)
            for message in caught:
                if rank == 0:
                    assert message.startswith("RankMismatchError: [RK310] "), message
                    told = f"rank 1 cannot take part: its {method}() "
                    assert told in message, message
                    assert "model 'sequential" in message, message
                if kind not in ("shape", "arguments", "not compiled"):
                    assert "OSError: no first batch" in message
        assert training.largest_difference(weights, model.get_weights()) < 1e-6
        assert training.history_difference(theirs, history) < 1e-6


def retried_worker():
    """Rank 1 fails twice on its way into a `fit`, in which the others are."""
    part = ring.data.shard(training.dataset(24)).batch(4)
    model = training.distributed_model(1)
    caught = []
    for attempt in range(3):
        data = FailsAtOnce() if ring.rank() == 1 and attempt < 2 else part
        try:
            model.fit(data, verbose=0)
        except Exception as error:
            caught.append(type(error).__name__)
    return caught, training.as_bytes(model.get_weights())


def test_the_nth_fit_of_a_rank_is_the_nth_of_all(rank_pool):
    (first, weights), (second, others) = rank_pool(2).run(retried_worker, timeout_s=60)

    assert (first, second) == (["RankMismatchError"] * 2, ["OSError"] * 2)
    assert weights == others


def set_of_one_worker():
    """Before it is trained, a model of one rank is evaluated by that rank."""
    sets = [ring.add_process_set([rank]) for rank in range(2)]
    optimizer = ring.DistributedOptimizer("sgd", process_set=sets[ring.rank()])
    model = training.compile_model(training.build(1), optimizer)
    if ring.rank() == 0:
        average = ring.callbacks.MetricAverage()
        model.evaluate(training.dataset(8).batch(4), verbose=0, callbacks=[average])
    ring.barrier()
    for process_set in sets:
        ring.remove_process_set(process_set)


def test_an_evaluation_asks_the_ranks_of_the_model(rank_pool):
    rank_pool(2).run(set_of_one_worker, timeout_s=30)
