"""Callbacks of ring_keras on torch and JAX."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from engines.back_ends.test_fit_failures import assert_equal_on_all, data_of, message_of
from support.back_ends import BACK_END, begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


def model_of(keras, seed, optimizer, *layers):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.BatchNormalization(),
            *layers,
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, loss="mse", metrics=["mae"])
    return model


def weights_of(model):
    """As they are now: on torch Keras's own arrays change in training."""
    return [np.array(variable.numpy()) for variable in model.weights]


def values_of(model):
    return [np.asarray(v.numpy()) for v in (*model.weights, *model.optimizer.variables)]


def beginning_of(keras):
    """A callback that keeps the weights with which the first epoch begins."""

    class Begins(keras.callbacks.Callback):
        weights = None

        def on_epoch_begin(self, epoch, logs=None):
            if self.weights is None:
                self.weights = weights_of(self.model)

    return Begins()


FIT = {"batch_size": 6, "epochs": 2, "verbose": 0, "shuffle": False}


def horovods_worker():
    """An optimizer that nobody has distributed, and the lines of a Horovod script."""
    import keras

    ring = begin()
    x, y = data_of(ring.rank())
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model = model_of(keras, ring.rank(), optimizer)
    own = weights_of(model)
    begins = beginning_of(keras)
    history = model.fit(
        x,
        y,
        **FIT,
        callbacks=[
            begins,
            ring.callbacks.BroadcastGlobalVariables(1),
            ring.callbacks.MetricAverage(),
        ],
    ).history
    # The same without them.
    again = model_of(keras, 1, ring.DistributedOptimizer(type(optimizer)(0.05, 0.9)))
    other = again.fit(x, y, **FIT).history
    # Keras loads TensorFlow by itself, where it is installed.
    assert "ring_keras.callbacks.tensorflow_side" not in sys.modules
    return own, begins.weights, history, values_of(model), other, values_of(again)


def test_a_horovod_scripts_callbacks_do_what_fit_does():
    found = ranks(horovods_worker, 2)

    for _, begun, history, values, other, again in found:
        assert_equal_on_all([found[1][0], begun])
        assert history == other == found[0][2]
        assert_equal_on_all([found[0][3], values, again])


def too_late_worker():
    """Keras comes after `init()`, and nothing distributed but within the call."""
    ring = begin()
    import keras

    x, y = data_of(ring.rank())
    model = model_of(keras, ring.rank(), "sgd")
    told = [
        message_of(
            lambda: model.fit(x, y, **FIT, callbacks=[ring.callbacks.Distributed()])
        )
    ]
    model.fit(x, y, **FIT, callbacks=[ring.callbacks.Distributed()])
    return told, values_of(model)


def test_a_call_that_was_looked_up_too_early_is_refused():
    found = ranks(too_late_worker, 2)

    for (told,), _ in found:
        assert told[0] == "RingKerasError"
        assert told[1].startswith("[RK357] ring_keras.callbacks.")
    assert_equal_on_all([values for _, values in found])


def local_worker():
    """A weight that stays as it is on each rank, and a root that not all ranks name."""
    ring = begin()
    import keras

    x, y = data_of(ring.rank())

    class Own(keras.layers.Layer):
        def build(self, shape):
            self.own = self.add_weight(name="own", shape=(), trainable=False)

        def call(self, inputs):
            return inputs

    layer = Own()
    model = model_of(keras, ring.rank(), ring.DistributedOptimizer("sgd"), layer)
    mine = layer.own
    mine.assign(10.0 + ring.rank())
    start = ring.callbacks.BroadcastGlobalVariables(local_variables=[mine])
    model.fit(x, y, **FIT, callbacks=[start])
    roots = ring.callbacks.BroadcastGlobalVariables(ring.rank())
    told = message_of(lambda: model.fit(x, y, **FIT, callbacks=[roots]))
    none = ring.callbacks.BroadcastGlobalVariables(7)
    no_rank = message_of(lambda: model.fit(x, y, **FIT, callbacks=[none]))
    model.fit(x, y, **FIT, callbacks=[start])
    others = [v.numpy() for v in model.weights if v is not mine]
    return float(mine.numpy()), told, no_rank, others


def test_local_variables_stay_and_roots_must_agree():
    found = ranks(local_worker, 2)

    assert [mine for mine, *_ in found] == [10.0, 11.0]
    for _, told, no_rank, _ in found:
        assert told[0] == "RankMismatchError"
        assert told[1].startswith("[RK326] fit(): root ranks differ across ranks")
        assert "7" in no_rank[1]
    assert_equal_on_all([others for *_, others in found])


def plain_worker():
    """Metrics of all ranks, and an optimizer that is each rank's own."""
    ring = begin()
    import keras

    x, y = data_of(ring.rank())
    average = ring.callbacks.MetricAverage()
    model = model_of(keras, 0, "sgd")
    apart = message_of(lambda: model.fit(x, y, **FIT, callbacks=[average]))
    model = model_of(keras, 0, ring.DistributedOptimizer("sgd"))
    some = {"validation_data": (x, y)} if ring.rank() else {}
    wait = message_of(lambda: model.fit(x, y, **FIT, **some, callbacks=[average]))
    model.fit(x, y, **FIT, **some)
    return apart, wait, values_of(model)


def test_metrics_of_all_need_one_model_and_the_data_of_all():
    found = ranks(plain_worker, 2)

    for apart, wait, _ in found:
        assert apart[0] == wait[0] == "RankMismatchError"
        assert apart[1].startswith("[RK324]"), apart
        assert wait[1].startswith("[RK315] fit(): ring_keras.callbacks.MetricAverage")
        assert "ranks [1]" in wait[1]
    assert_equal_on_all([values for *_, values in found])


def evaluating_worker():
    ring = begin()
    import keras

    x, y = data_of(0, 24)
    model = model_of(keras, 0, ring.DistributedOptimizer("sgd"))
    whole = model.evaluate(x, y, batch_size=8, verbose=0)
    own = ring.data.shard((x, y))
    test = {"batch_size": 4, "verbose": 0}
    found = [
        model.evaluate(*own, **test, callbacks=[callback])
        for callback in (ring.callbacks.MetricAverage(), ring.callbacks.Distributed())
    ]
    alone = model.evaluate(*own, **test)

    class Evaluates(keras.callbacks.Callback):
        seen = None

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                average = ring.callbacks.MetricAverage()
                of_all = self.model.evaluate(*own, **test, callbacks=[average])
                mine = self.model.evaluate(*own, **test)
                self.seen = of_all, mine

    evaluates = Evaluates()
    listed = keras.callbacks.CallbackList(
        [evaluates, ring.callbacks.Distributed()], add_history=True, model=model
    )
    model.fit(*own, **FIT, callbacks=listed)

    def fail(batch, logs):
        if ring.rank() == 1:
            raise OSError("no disk")

    failing = keras.callbacks.LambdaCallback(on_test_batch_end=fail)
    callbacks = [ring.callbacks.MetricAverage(), failing]
    told = message_of(lambda: model.evaluate(*own, **test, callbacks=callbacks))
    model.fit(*own, **FIT)
    return whole, found, alone, evaluates.seen, told, values_of(model)


def test_an_evaluation_reports_of_all_ranks_where_callbacks_say_so():
    found = ranks(evaluating_worker, 2)

    for whole, of_all, alone, inside, told, _ in found:
        np.testing.assert_allclose(of_all, [whole, whole], rtol=1e-5)
        assert not np.allclose(alone, whole, rtol=1e-3)
        assert inside[0] == found[0][3][0]
        assert inside[1] != inside[0]
        assert "no disk" in told[1]
    assert_equal_on_all([values for *_, values in found])


def everything_worker(directory):
    """`Distributed` with arguments, and a file of all ranks."""
    ring = begin()
    import keras

    x, y = data_of(ring.rank())
    model = model_of(keras, ring.rank(), keras.optimizers.SGD(7.0, momentum=0.9))
    own = weights_of(model)
    begins = beginning_of(keras)
    saved = []
    logger = keras.callbacks.CSVLogger(f"{directory}/log.csv")
    write = logger.on_train_begin
    logger.on_train_begin = lambda logs=None: (saved.append(1), write(logs))
    rate = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(logs["learning_rate"])
    )
    rates = []
    distributed = ring.callbacks.Distributed(1, base_lr=0.02, warmup_epochs=2)
    history = model.fit(
        x, y, **FIT, callbacks=[begins, distributed, rate, logger]
    ).history
    return own, begins.weights, bool(saved), rates, history, values_of(model)


def test_one_callback_for_all(tmp_path):
    found = ranks(everything_worker, 2, str(tmp_path))

    assert [wrote for _, _, wrote, *_ in found] == [False, True]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    for _, begun, _, rates, history, values in found:
        assert_equal_on_all([found[1][0], begun])
        np.testing.assert_allclose(rates, [0.02 * (1 + n / 8) for n in (3, 7)])
        assert history == found[0][4]
        assert_equal_on_all([found[0][5], values])


def files_worker(directory):
    ring = begin()
    import keras

    path = Path(directory)
    x, y = data_of(ring.rank())
    model = model_of(keras, 0, ring.DistributedOptimizer("adam"))
    best = ring.callbacks.BestModelCheckpoint("loss", filepath=path / "best.keras")

    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            (path / f"epoch-{epoch}-{ring.rank()}").write_text(str(logs["loss"]))

    only = ring.callbacks.RootOnly(Writes(), 1)
    history = model.fit(x, y, **FIT, callbacks=[best, only]).history
    assert best.best == min(history["loss"])
    loaded = keras.models.load_model(path / "best.keras")
    outputs = loaded.predict(x, verbose=0)
    with ring.callbacks.RootOnly() as is_root:
        if is_root:
            (path / "unpacked").write_text("all")
    assert (path / "unpacked").read_text() == "all"

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise OSError("no disk")

    only = ring.callbacks.RootOnly(Fails())
    told = [message_of(lambda: model.fit(x, y, **FIT, callbacks=[only]))]
    best = ring.callbacks.BestModelCheckpoint("loss", filepath=path / "no" / "a.keras")
    (path / "no").write_text("a file, and no directory")
    told.append(message_of(lambda: model.fit(x, y, **FIT, callbacks=[best])))
    model.fit(x, y, **FIT)
    return told, outputs.shape, values_of(model)


def test_one_rank_writes(tmp_path):
    found = ranks(files_worker, 2, str(tmp_path))

    assert {file.name for file in tmp_path.glob("epoch-*")} == {
        "epoch-0-1",
        "epoch-1-1",
    }
    for told, *_ in found:
        assert "no disk" in told[0][1]
        assert told[1] is not None
    assert "[RK310]" in found[1][0][0][1]
    assert "BestModelCheckpoint failed on rank 0" in found[1][0][1][1]
    assert_equal_on_all([values for *_, values in found])


REFUSED = ("Checkpoint", "Elastic", "Preemption", "RingMetrics", "TensorBoard")


def refused_worker():
    ring = begin()
    from ring_keras.callbacks import Elastic

    calls = [lambda name=name: getattr(ring.callbacks, name)("x") for name in REFUSED]
    calls.append(lambda: ring.callbacks.Distributed(elastic=True))
    calls.append(lambda: ring.callbacks.Distributed(tensorboard="logs"))
    assert isinstance(Elastic, type)
    assert not hasattr(ring.callbacks, "Nothing")
    return [message_of(call) for call in calls]


def test_what_is_not_there_is_refused_by_name():
    for found in ranks(refused_worker, 2):
        names = [*REFUSED, "Elastic", "TensorBoard"]
        for (kind, text), name in zip(found, names, strict=True):
            assert kind == "RingKerasError"
            said = f"[RK137] ring_keras.callbacks.{name} needs TensorFlow, and Keras's "
            assert text.startswith(f"{said}back end in this process is {BACK_END}")
            assert "no others yet. Use keras." in text or "ring_keras.stats" in text


def without_a_job_worker():
    """Callbacks in which ranks meet, before `init()`; and then in a job of one."""
    import keras

    import ring_keras as ring

    x, y = data_of(0)
    told = []
    for callback in (
        ring.callbacks.MetricAverage(),
        ring.callbacks.BroadcastGlobalVariables(),
        ring.callbacks.Distributed(),
    ):
        model = model_of(keras, 0, "sgd")
        told.append(
            message_of(
                lambda model=model, callback=callback: model.fit(
                    x, y, **FIT, callbacks=[callback]
                )
            )
        )
    begin()
    model = model_of(keras, 0, "sgd")
    callbacks = [
        ring.callbacks.Distributed(base_lr=0.1, warmup_epochs=1),
        ring.callbacks.RootOnly(keras.callbacks.TerminateOnNaN()),
    ]
    history = model.fit(x, y, **FIT, callbacks=callbacks).history
    return told, history["learning_rate"]


def test_a_job_of_one_and_none():
    ((told, rates),) = ranks(without_a_job_worker, 1)

    assert [kind for kind, _ in told] == ["NotInitializedError"] * 3
    np.testing.assert_allclose(rates, [0.1, 0.1])
