"""docs/trips.md lists the files that Python enters on each trip."""

from __future__ import annotations

from pathlib import Path

from support import run_ranks, trips

TF_OPS = Path(__file__).resolve().parents[2] / "tf_ops"


def traced_steps():
    """The files of a gradient and those of a `fit`, in this rank's process."""
    import keras
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring

    ring.init()

    keras.utils.set_random_seed(0)  # So all ranks begin with the same weights.

    def new_model():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    model = new_model()
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.1))
    variables = model.trainable_variables
    optimizer.build(variables)
    gradient, fit = trips.Trip(), trips.Trip()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones((8, 4))))
        gradients = tape.gradient(loss, variables)
        with gradient:
            optimizer.apply(gradients, variables)

    step()
    model = new_model()
    model.compile(ring.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    generator = np.random.default_rng(0)
    mine = ring.data.shard((generator.random((32, 4)), generator.random((32, 3))))
    with fit:
        model.fit(*mine, batch_size=8, epochs=1, verbose=0)
    return gradient.files, fit.files


def test_a_gradient_and_a_fit_enter_what_the_page_lists():
    gradient, fit = run_ranks(traced_steps, 2)[0]

    tables = trips.python_tables_of("One gradient")
    assert trips.differences(gradient, tables) == []
    in_both = [file for table in tables for file in table]
    own = trips.tables_of("One `fit`")
    assert trips.differences(fit, own, elsewhere=in_both) == []
    assert set(in_both) <= set(fit)


def test_the_files_of_the_engine_are_there():
    for table in trips.tables_of("One gradient"):
        for file in table:
            assert file.endswith(".py") or (TF_OPS / file).is_file(), file
