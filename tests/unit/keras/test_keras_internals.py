"""The private names of Keras and tf.data that the package relies on.

A failure here names what a new release has changed; `keras_internals` is
the one file to mend.
"""

from __future__ import annotations

import inspect
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import run_ranks

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.errors import RingKerasError
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.building import create_variables


def test_the_names_exist():
    """This release has them all, and the package may say so of a newer one."""
    internals.require_private_names.__wrapped__()


def test_names_that_are_gone_are_told(monkeypatch):
    optimizer = keras.optimizers.SGD()
    for owner, name in (
        (keras.optimizers.SGD, "_clip_gradients"),
        (keras.Model, "_symbolic_build"),
    ):
        for cls in owner.__mro__:
            if name in vars(cls):
                monkeypatch.delattr(cls, name)
    with pytest.raises(RingKerasError) as caught:
        internals.require_private_names.__wrapped__()

    assert "keras.Model._symbolic_build, " in str(caught.value)
    assert "keras.optimizers.Optimizer._clip_gradients. " in str(caught.value)
    assert f"Keras {keras.__version__} with TensorFlow {tf.__version__}" in str(
        caught.value
    )
    with pytest.raises(RingKerasError, match=r"need.*: SGD\._clip_gradients\."):
        internals.replace(optimizer, internals.CLIP_GRADIENTS, lambda grads: grads)
    with pytest.raises(RingKerasError, match=r"need.*: SGD\._gone\."):
        internals.private(optimizer, "_gone")


def test_a_local_variable_of_fit_that_is_gone_is_told(monkeypatch):
    """As a release has it that calls one something else; its `fit` works as before."""
    fit = inspect.unwrap(keras.Model.fit)
    names = [
        f"the_{n}" if n == "epoch_iterator" else n for n in fit.__code__.co_varnames
    ]
    renamed = types.FunctionType(
        fit.__code__.replace(co_varnames=tuple(names)), fit.__globals__, "fit"
    )
    monkeypatch.setattr(keras.Model, "fit", renamed)
    with pytest.raises(RingKerasError) as caught:
        internals.require_private_names.__wrapped__()
    # Of one that is somebody's own nothing can be told.
    monkeypatch.setattr(keras.Model, "fit", lambda self, *args: fit(self, *args))
    internals.require_private_names.__wrapped__()

    assert "needs: epoch_iterator in keras.Model.fit(). It knows" in str(caught.value)


def renamed_worker():
    """A release that calls something else what this package takes from Keras."""
    delattr(keras.callbacks.TensorBoard, "_train_writer")
    with pytest.raises(ring.RingKerasError) as caught:
        ring.init()
    assert not ring.is_initialized()
    return str(caught.value)


@pytest.mark.slow
def test_init_refuses_a_release_without_them():
    (text,) = run_ranks(renamed_worker, 1)

    assert text.startswith("[RK607] ")
    assert "needs: keras.callbacks.TensorBoard._train_writer. " in text


def test_the_package_asks_for_the_oldest_keras_that_is_tested():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()

    assert f'"keras>={internals.OLDEST_KERAS}"' in text


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_clip_gradients", ["self", "grads"]),
        ("_backend_apply_gradients", ["self", "grads", "trainable_variables"]),
        ("_overwrite_variables_directly_with_gradients", ["self", "grads", "vars"]),
        ("apply", ["self", "grads", "trainable_variables"]),
    ],
)
def test_optimizer_methods_take_what_the_hook_takes(method, parameters):
    for cls in (keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer):
        assert list(inspect.signature(getattr(cls, method)).parameters) == parameters


def compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    return model


def test_an_update_calls_the_replaced_methods_of_the_instance():
    model = compiled()
    called = []

    def note(name):
        original = getattr(model.optimizer, name)

        def method(*args):
            called.append(name)
            return original(*args)

        internals.replace(model.optimizer, name, method)

    note(internals.BACKEND_APPLY_GRADIENTS)
    note(internals.CLIP_GRADIENTS)
    variables = model.trainable_variables
    model.optimizer.apply([tf.ones(v.shape) for v in variables], variables)
    assert called == [internals.BACKEND_APPLY_GRADIENTS]
    model.optimizer.apply([tf.ones(v.shape) for v in variables], variables)

    assert called[1:] == [internals.BACKEND_APPLY_GRADIENTS, internals.CLIP_GRADIENTS]
    internals.restore(model.optimizer, internals.CLIP_GRADIENTS)
    assert internals.replacement(model.optimizer, internals.CLIP_GRADIENTS) is None


def test_fit_calls_the_replaced_methods_of_the_model():
    model = compiled()
    called = []

    class Replaces(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            function = internals.train_function(model)

            def train_function(iterator):
                called.append(iterator.element_spec[0].shape.as_list())
                return function(iterator)

            def result(logs):
                called.append("metrics")
                return {"of": 1.0}

            internals.set_train_function(model, train_function)
            internals.replace(model, internals.METRICS_RESULT, result)
            internals.set_initial_epoch(model, 3)

    history = model.fit(
        np.ones((4, 2)),
        np.ones((4, 1)),
        batch_size=4,
        epochs=4,
        verbose=0,
        callbacks=[Replaces()],
    )

    assert called == [[4, 2], "metrics"]
    assert history.history == {"of": [1.0]}
    assert internals.initial_epoch(model) == 3


def test_the_call_that_asks_for_a_result_is_known():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.ones((4, 2)), np.ones((4, 1))
    runs = []

    def result(logs):
        runs.append(calls.calling_run(model))
        return {"of": 1.0}

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model.evaluate(*data, verbose=0)

    internals.replace(model, internals.METRICS_RESULT, result)
    evaluates = Evaluates()
    model.fit(*data, verbose=0, validation_data=data, callbacks=[evaluates])

    fit, validation, evaluate = runs
    assert [fit.trains, validation.trains, evaluate.trains] == [True, False, False]
    assert fit.callbacks is validation.callbacks
    assert evaluates in fit.callbacks.callbacks
    assert evaluates not in evaluate.callbacks.callbacks
    assert calls.calling_run(model) is None


def test_a_model_is_built_from_the_spec_of_its_batches():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("adam", "mse", metrics=["mae"])
    spec = tf.TensorSpec((None, 2)), tf.TensorSpec((None, 3))

    create_variables(model, spec)

    assert [list(weight.shape) for weight in model.weights] == [[2, 3], [3]]
    assert len(model.optimizer.variables) == 2 + 2 * 2
    assert int(model.optimizer.iterations) == 0


def test_optimizers_inside_and_beside_a_model():
    model = compiled()
    model.other = keras.optimizers.Adam()
    deep, deeper = keras.optimizers.Adam(), keras.optimizers.Adam()
    model.more = [{"a": (deep,)}, model.other]
    model.part = compiled()
    model.part.by_name = {"it": deeper}
    wrapper = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())

    assert set(internals.optimizers_of(model)) == {
        model.optimizer,
        model.other,
        deep,
        model.part.optimizer,
        deeper,
    }
    assert internals.optimizers_of(model)[0] is model.optimizer
    assert internals.inner_optimizers(wrapper) == [wrapper.inner_optimizer]
    assert not internals.is_wrapper(model.optimizer)


@pytest.mark.parametrize(
    ("optimizer", "count"),
    [
        (keras.optimizers.SGD(momentum=0.9), 2),
        (keras.optimizers.SGD(), 0),
        (keras.optimizers.RMSprop(momentum=0.9), 2),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9)), 2),
        (keras.optimizers.Adam(), 0),  # Its averages hold no learning rate.
    ],
)
def test_velocities_are_found_once_they_exist(optimizer, count):
    assert internals.velocities(optimizer) == []
    optimizer.build(compiled().trainable_variables)

    velocities = internals.velocities(optimizer)

    assert [list(v.shape) for v in velocities] == [[2, 1], [1]][:count]


def test_batch_normalizations_are_found_at_any_depth():
    layer = keras.layers.BatchNormalization(axis=1)
    inner = keras.Sequential([keras.layers.Dense(2), layer])
    model = keras.Sequential([keras.Input((3, 2)), inner])

    assert internals.batch_normalizations(model) == [layer]
    assert internals.batch_normalizations(layer) == [layer]
    assert internals.reduction_axes(layer) == [0, 2]


def test_moments_are_asked_of_the_instance():
    layer = keras.layers.BatchNormalization()
    seen = []

    def moments(inputs, mask):
        seen.append(mask)
        return tf.zeros(2), tf.ones(2)

    internals.replace(layer, internals.MOMENTS, moments)
    layer(tf.ones((3, 2)), training=True)
    layer(tf.ones((3, 2)))

    assert seen == [None]


def test_the_list_of_callbacks_is_found_and_grows():
    called = []

    class Added(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            called.append("added")

    class Adds(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            called.append("adds")
            calls.calling_callback_list().callbacks.append(Added())

    class After(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            called.append("after")

    data = np.ones((4, 2)), np.ones((4, 1))
    compiled().fit(*data, verbose=0, callbacks=[Adds(), After()])

    assert called == ["adds", "after", "added"]
    assert calls.calling_callback_list() is None


def test_summed_losses_are_seen():
    model = compiled()
    assert not internals.summed_losses(model)
    assert internals.has_other_losses(model)
    mse = keras.losses.MeanSquaredError
    summed, single, mean = mse(reduction="sum"), mse(reduction=None), mse()
    model.compile("sgd", {"a": summed, "b": [single, mean, "mae", None]})
    assert internals.summed_losses(model) == [summed, single]
    assert internals.has_other_losses(model)
    model.compile("sgd", summed)
    assert not internals.has_other_losses(model)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has none"
)
def test_a_wrapper_is_one_before_it_is_built():
    wrapper = keras.optimizers.MultiOptimizer(lambda variable: None)

    assert internals.is_wrapper(wrapper)
    assert internals.inner_optimizers(wrapper) == []


def test_seeds_of_shuffles_are_seen():
    tf.random.set_seed(None)  # A test before may have set one.
    dataset = tf.data.Dataset.range(4)

    assert internals.shuffle_seeds(dataset) is None
    assert internals.shuffle_seeds(dataset.shuffle(4)) == (0, 0)
    assert internals.shuffle_seeds(dataset.shuffle(4, seed=0)) != (0, 0)
    assert internals.shuffle_seeds(dataset.shuffle(4, seed=3))[1] == 3


def test_batches_have_known_class_names():
    dataset = tf.data.Dataset.range(4)
    batched = [
        dataset.batch(2),
        dataset.batch(2, num_parallel_calls=2, deterministic=True),
        dataset.padded_batch(2),
        dataset.ragged_batch(2),
        dataset.apply(tf.data.experimental.map_and_batch(lambda x: x, 2)),
    ]

    for one in batched:
        assert type(one).__name__ in internals.BATCH_DATASETS
    assert type(batched[0].unbatch()).__name__ == internals.UNBATCH_DATASET


def test_what_keeps_batches_at_their_places_has_known_class_names():
    dataset = tf.data.Dataset.range(4)
    options = tf.data.Options()
    keeps = [
        dataset.map(lambda x: x),
        dataset.map(lambda x: x, num_parallel_calls=2),
        dataset.prefetch(2),
        dataset.with_options(options),
    ]
    options.deterministic = False
    others = [
        dataset.map(lambda x: x, num_parallel_calls=2, deterministic=False),
        dataset.with_options(options),
        dataset.shuffle(2, seed=1),
        dataset.take(2),
        dataset.batch(2),
    ]

    assert all(map(internals.keeps_batches, keeps))
    assert not any(map(internals.keeps_batches, others))


class Unread(list):
    """A vocabulary, say."""

    def __iter__(self):
        raise AssertionError("somebody walks through it")


def test_optimizers_are_not_looked_for_among_thousands_of_things():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd")
    mine = [keras.optimizers.Adam(), keras.optimizers.Adam()]
    model.kept = {"a": [mine[0]], "b": {"c": (mine[1], None, "text")}}
    vars(model)["vocabulary"] = Unread(range(5000))

    assert internals.optimizers_of(model) == [model.optimizer, *mine]


def test_the_default_optimizer_trains_if_there_is_no_other_or_once_it_has():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile()
    default = model.optimizer
    assert internals.training_optimizers(model) == [default]

    model.mine = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    model.inside = model.mine.inner_optimizer
    assert internals.training_optimizers(model) == [model.mine]

    default.build(model.trainable_variables)
    default.iterations.assign_add(1)
    assert internals.training_optimizers(model) == [default, model.mine]
    assert internals.steps_done_of(model) == 1


def test_accumulated_gradients_are_known_by_their_names():
    model = compiled()
    model.optimizer.build(model.trainable_variables)

    found = list(filter(internals.accumulates, model.optimizer.variables))

    assert [list(v.shape) for v in found] == [[2, 1], [1]]


@pytest.mark.parametrize("kind", [keras.Variable, tf.Variable])
def test_variables_of_either_kind_are_known(kind):
    made_by_layer = compiled().trainable_variables[0]
    variable = kind([[1.0]])

    assert internals.is_keras_variable(made_by_layer)
    assert internals.is_keras_variable(variable) == (kind is keras.Variable)
    assert internals.is_variable(variable)
    assert isinstance(internals.tensorflow_variable(variable), tf.Variable)
    for other in (tf.ones(1), "path", keras.layers.Dense(1), keras.Input((1,)), None):
        assert not internals.is_variable(other)
        assert internals.tensorflow_variable(other) is other
