"""Layers that each rank trains for itself, on torch and JAX."""

from __future__ import annotations

import numpy as np
import pytest
from support.back_ends import begin, needs_back_end, ranks

needs_back_end()

pytestmark = [pytest.mark.engines, pytest.mark.timeout(400)]

STEPS = 4
# Of a rank's batches: ranks count by their examples.
ROWS = (4, 3)

CASES = {
    "sgd": {},
    "adam": {"optimizer": "Adam"},
    "adafactor": {"optimizer": "Adafactor"},
    "accumulation": {"gradient_accumulation_steps": 2},
    "clipnorm": {"clipnorm": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.5},
}


def data():
    """The ranks' batches, one after the other."""
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(STEPS, sum(ROWS), 5)).astype("float32")
    return x, np.square(x).sum(-1, keepdims=True)


def part_of(rank):
    rows = slice(ROWS[0] * rank, ROWS[0] * rank + ROWS[rank])
    return [np.concatenate(list(one[:, rows])) for one in data()]


def optimizer_of(keras, case):
    case = dict(case)
    return getattr(keras.optimizers, case.pop("optimizer", "SGD"))(0.02, **case)


def state_of(variables):
    return [np.array(variable.numpy()) for variable in variables]


def alone_worker():
    """One model with a head for each rank's rows."""
    import keras

    found = {}
    for name, case in CASES.items():
        keras.utils.set_random_seed(1)
        inputs, mask = keras.Input((5,)), keras.Input((2,))
        body = keras.layers.Dense(6, "tanh", name="body")
        heads = [keras.layers.Dense(1, name=f"head_{rank}") for rank in (0, 1)]
        hidden = body(inputs)
        parts = [head(hidden) for head in heads]
        both = keras.layers.Concatenate()(parts)
        outputs = keras.layers.Dot(axes=1)([both, mask])
        model = keras.Model([inputs, mask], outputs)
        set_values(model.layers)
        model.compile(optimizer_of(keras, case), "mse")
        owners = np.repeat(np.eye(2, dtype="float32"), ROWS, axis=0)
        for _ in range(2):
            for x, y in zip(*data(), strict=True):
                model.train_on_batch([x, owners], y)
        model.optimizer.finalize_variable_values(model.trainable_weights)  # As `fit`.
        found[name] = state_of(body.weights), [state_of(h.weights) for h in heads]
    return found


def set_values(layers, rank=0):
    """The same on all ranks but for their heads, and what `fit` is to make alike."""
    seeds = {"body": 5 + 70 * rank, "head": 6 + rank, "head_0": 6, "head_1": 7}
    for layer in layers:
        if layer.name in seeds:
            numbers = np.random.default_rng(seeds[layer.name])
            values = [numbers.normal(size=w.shape) for w in layer.get_weights()]
            layer.set_weights(values)


def job_worker():
    ring = begin()
    import keras

    rank = ring.rank()
    x, y = part_of(rank)
    found = {}
    for name, case in CASES.items():
        model, body, head = model_with_head(keras, rank)
        optimizer = ring.DistributedOptimizer(
            optimizer_of(keras, case), local_layers=head
        )
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=ROWS[rank], epochs=2, shuffle=False, verbose=0)
        found[name] = state_of(body.weights), state_of(head.weights)
    return found


def model_with_head(keras, rank):
    keras.utils.set_random_seed(1)
    body = keras.layers.Dense(6, "tanh", name="body")
    head = keras.layers.Dense(1, name="head")
    model = keras.Sequential([keras.Input((5,)), body, head])
    set_values(model.layers, rank)
    return model, body, head


def test_they_are_those_of_one_process_with_a_layer_for_each_rank():
    everyone = ranks(job_worker, 2, timeout_s=300)
    (alone,) = ranks(alone_worker, 1, timeout_s=300)

    for name in CASES:
        bodies = [of_rank[name][0] for of_rank in everyone]
        for one, other in zip(*bodies, strict=True):
            np.testing.assert_array_equal(one, other)
        body, heads = alone[name]
        for rank, of_rank in enumerate(everyone):
            expected = [*body, *heads[rank]]
            for got, value in zip(
                [*of_rank[name][0], *of_rank[name][1]], expected, strict=True
            ):
                np.testing.assert_allclose(got, value, 2e-4, 2e-6, err_msg=name)


def unscaled_worker():
    """One step of SGD, with and without the rank's share; and in `train_on_batch`."""
    ring = begin()
    import keras

    rank = ring.rank()
    x, y = part_of(rank)
    moved = []
    for scale, on_batch in [(True, False), (False, False), (True, True)]:
        model, _, head = model_with_head(keras, rank)
        before = head.get_weights()
        model.compile(
            ring.DistributedOptimizer(
                keras.optimizers.SGD(0.02),
                local_layers=[head],
                scale_local_gradients=scale,
            ),
            "mse",
        )
        rows = slice(0, ROWS[rank])
        if on_batch:
            model.train_on_batch(x[rows], y[rows])
        else:
            model.fit(x[rows], y[rows], batch_size=8, verbose=0)
        after = head.get_weights()
        moved.append([a - b for a, b in zip(after, before, strict=True)])
    return moved


def test_gradients_are_shares_of_an_average_unless_told_otherwise():
    for rank, (scaled, unscaled, on_batch) in enumerate(ranks(unscaled_worker, 2)):
        share = ROWS[rank] / sum(ROWS)
        for one, other, third in zip(scaled, unscaled, on_batch, strict=True):
            np.testing.assert_allclose(one, share * other, rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(one, third, rtol=1e-4, atol=1e-7)


def statistics_worker():
    """Moving statistics of a local layer, in data that end earlier on one rank."""
    ring = begin()
    import keras

    rank = ring.rank()
    norm = keras.layers.BatchNormalization(name="norm")
    common = keras.layers.BatchNormalization(name="common")
    model = keras.Sequential(
        [keras.Input((5,)), common, norm, keras.layers.Dense(1, name="last")]
    )
    optimizer = ring.DistributedOptimizer("adam", local_layers=norm)
    model.compile(optimizer, "mse")
    x, y = part_of(rank)
    rows = len(x) - 6 * rank
    x, y = ring.data.join((x[:rows] + 10 * rank, y[:rows]))
    model.fit(x, y, batch_size=3, epochs=2, verbose=0)
    return (
        state_of(norm.weights),
        state_of(common.weights),
        state_of(model.weights[-2:]),
    )


def test_moving_statistics_are_each_ranks_own():
    (own, common, last), (others, theirs, lasts) = ranks(statistics_worker, 2)

    for one, other in zip(own, others, strict=True):
        assert (one != other).all()
    for one, other in zip([*common, *last], [*theirs, *lasts], strict=True):
        np.testing.assert_array_equal(one, other)


def saving_worker(folder):
    ring = begin()
    import keras

    model, _, head = model_with_head(keras, ring.rank())
    model.compile(ring.DistributedOptimizer("sgd", local_layers=head), "mse")
    x, y = part_of(ring.rank())
    savers = [
        keras.callbacks.ModelCheckpoint(f"{folder}/all.keras"),
        ring.callbacks.BestModelCheckpoint("loss", filepath=f"{folder}/best.keras"),
        keras.callbacks.ModelCheckpoint(f"{folder}/{ring.rank()}.keras"),
    ]
    model.fit(x, y, batch_size=ROWS[ring.rank()], verbose=0, callbacks=savers)


def test_a_file_of_one_ranks_layers_is_told_of(tmp_path):
    first, second = ranks(saving_worker, 2, str(tmp_path), check=False)

    assert first.ok and second.ok, [first.describe(), second.describe()]
    assert "[RK653]" not in second.stderr
    said = [line for line in first.stderr.splitlines() if "[RK653]" in line]
    assert len(said) == 2, said
    for name, line in zip(("all", "best"), said, strict=True):
        assert f"only rank 0 saves '{tmp_path}/{name}.keras'" in line
        assert "trains its own 'head'" in line


def refused_worker(folder):
    ring = begin()
    import keras

    model, _, head = model_with_head(keras, ring.rank())
    found = []
    for options in [{"global_clipnorm": 1.0}, {}]:
        try:
            optimizer = ring.DistributedOptimizer(
                keras.optimizers.SGD(0.1, **options), local_layers=head
            )
            model.compile(optimizer, "mse")
            backup = keras.callbacks.BackupAndRestore(folder)
            model.fit(*part_of(ring.rank()), verbose=0, callbacks=[backup])
        except Exception as error:
            found.append(str(error))
    return found


def test_what_would_drift_apart_is_refused(tmp_path):
    for clips, backup in ranks(refused_worker, 2, str(tmp_path / "backup")):
        assert "RK420" in clips
        assert "global_clipnorm" in clips
        assert "[RK660] BackupAndRestore with local_layers" in backup
