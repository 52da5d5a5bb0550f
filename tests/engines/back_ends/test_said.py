"""What ranks on torch and JAX are told of that they would train on wrongly, or lose."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import BACK_END, begin, needs_back_end, ranks

needs_back_end()

pytestmark = pytest.mark.engines


def begun(*layers, loss="mse"):
    """The module, Keras, and a compiled model of all ranks, by default of one layer."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss)
    return ring, keras, model


def data_of(rank, rows=8):
    x = np.random.default_rng(rank).normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def weighted_output_worker(loss_of_each, weighted="a"):
    """Two outputs, of which one has sample weights; the weights, or the error."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    model = keras.Model(inputs, outputs)
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        {"a": loss, "b": None} if loss_of_each else loss,
    )
    x, y = data_of(ring.rank())
    weights = np.linspace(1, 2 + ring.rank(), len(x))
    given = {"a": None, "b": None} | ({weighted: weights} if weighted else {})
    try:
        model.fit(x, {"a": y, "b": y}, sample_weight=given, batch_size=4, verbose=0)
    except ring.RingKerasError as error:
        return str(error)
    return np.asarray(model.get_layer("a").kernel.numpy()).tolist()


def test_one_loss_of_outputs_of_which_some_have_weights_is_refused():
    for text in ranks(weighted_output_worker, 2, False):
        assert text.startswith("[RK603]"), text


def test_weights_of_an_output_without_a_loss_count_for_nothing():
    of_none, by_examples = (
        ranks(weighted_output_worker, 2, True, weighted) for weighted in ("b", None)
    )

    assert of_none == by_examples


def on_batch_worker(kind):
    """What `fit` refuses, without it."""
    ring, keras, model = begun()
    if kind == "float8":
        model.quantize("float8")
        model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x, y = data_of(ring.rank())
    with pytest.raises(ring.RingKerasError) as caught:
        model.train_on_batch(x, y)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["float8", "checked"])
def test_train_on_batch_refuses_what_fit_refuses(kind):
    env = {"RING_KERAS_CHECK_REDUCTIONS": "1"} if kind == "checked" else {}
    part = "'float8" if kind == "float8" else "RING_KERAS_CHECK_REDUCTIONS"
    for text in ranks(on_batch_worker, 2, kind, env=env):
        assert text.startswith("[RK660]"), text
        assert part in text or "overwritten" in text


def copy_worker():
    """A copy of a model that all ranks have trained."""
    ring, keras, model = begun()
    x, y = data_of(ring.rank())
    model.fit(x, y, batch_size=4, verbose=0)
    copy = keras.models.clone_model(model)
    copy.compile(keras.optimizers.SGD(0.01), "mse")
    for _ in range(2):
        copy.fit(x, y, batch_size=4, verbose=0)


def test_a_copy_that_each_rank_trains_alone_is_told_of_once():
    said = [one.stderr for one in ranks(copy_worker, 2, check=False)]

    assert [text.count("[RK651]") for text in said] == [1, 0], said
    assert "though another model's is" in said[0]


def saving_worker(path):
    """All ranks save to one path, again and again."""
    ring, keras, model = begun()
    for _ in range(4):
        ring.barrier()
        model.save(path)
        ring.barrier()
        keras.models.load_model(path)


def test_a_file_to_which_all_ranks_save_is_whole(tmp_path):
    outcomes = ranks(saving_worker, 2, str(tmp_path / "a.keras"), check=False)

    assert all(one.ok for one in outcomes), [one.describe() for one in outcomes]
    assert "[RK653]" in "".join(one.stderr for one in outcomes)


def writing_worker(directory):
    """Two of three ranks write one file, and all write another one."""
    ring, keras, model = begun()
    x, y = data_of(ring.rank())
    names = ["all.csv"] + ["some.csv"] * (ring.rank() > 0)
    callbacks = [keras.callbacks.CSVLogger(f"{directory}/{name}") for name in names]
    model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)


def test_files_of_some_ranks_are_told_of(tmp_path):
    said = [one.stderr for one in ranks(writing_worker, 3, str(tmp_path), check=False)]

    assert [text.count("[RK611]") for text in said] == [1, 0, 0], said
    assert "ranks [1, 2] all write" in said[0]
    assert "some.csv" in said[0]


def own_collective_worker(validates):
    """A layer that asks the other ranks, on data that end earlier on one of them."""
    ring = begin()
    import keras

    class Centered(keras.layers.Layer):
        def call(self, inputs):
            if BACK_END == "jax":
                import ring_keras.jax

                mean = ring_keras.jax.allreduce(keras.ops.mean(inputs, 0))
            else:
                import ring_keras.horovod.torch as hvd

                mean = hvd.allreduce(keras.ops.mean(inputs, 0), name="mean")
            return inputs - mean

    ring, keras, model = begun(Centered())
    rank = ring.rank()
    even = data_of(rank)
    model.fit(*even, batch_size=4, validation_data=even, verbose=0)
    uneven = ring.data.join(data_of(rank, 4 + 8 * rank))
    given = {"validation_data": uneven} if validates else {}
    x, y = even if validates else uneven
    with pytest.raises(Exception, match=r"\[RK660\]") as caught:
        model.fit(x, y, batch_size=4, verbose=0, **given)
    return str(caught.value)


@pytest.mark.parametrize("validates", [False, True])
def test_a_models_own_collective_in_joined_steps_is_refused(validates):
    for text in ranks(own_collective_worker, 2, validates, timeout_s=90):
        assert "is called in a step on data of ring_keras.data.join()" in text, text
