"""What a `fit` on torch or JAX does where ranks, their data or errors differ."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.back_ends import BACK_END, HAS_EXECUTIONS, begin, needs_back_end, ranks

needs_back_end()

pytestmark = pytest.mark.engines


def begun(seed=0, **options):
    """The module, and a compiled model with a layer that normalizes batches."""
    ring = begin()
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    optimizer = ring.DistributedOptimizer(keras.optimizers.Adam(0.01), **options)
    model.compile(optimizer, loss="mse", metrics=["mae"])
    return ring, keras, model


def data_of(rank, rows=24):
    numbers = np.random.default_rng(rank)
    x = numbers.normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def batches_of(x, y):
    """A generator."""
    for index in range(len(x) // 6):
        yield x[6 * index : 6 * index + 6], y[6 * index : 6 * index + 6]


def state_of(model):
    return [np.asarray(v.numpy()) for v in (*model.weights, *model.optimizer.variables)]


def assert_equal_on_all(found):
    for theirs in found:
        for one, other in zip(theirs, found[0], strict=True):
            np.testing.assert_array_equal(one, other)


def message_of(call):
    """Its error's type and text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


WHERE = ["data", "train_step", "batch_end", "epoch_end", "validation", "before"]


def failing_worker(where):
    """Rank 1 fails once in the second epoch, and all train again after it."""
    ring, keras, model = begun()
    rank = ring.rank()
    x, y = data_of(rank)
    fails = rank == 1

    class Fails(keras.callbacks.Callback):
        epoch = 0

        def on_train_begin(self, logs=None):
            if fails and where == "before":
                raise OSError("no disk before")

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if fails and where == "batch_end" and (self.epoch, batch) == (1, 1):
                raise OSError("no disk at batch_end")

        def on_epoch_end(self, epoch, logs=None):
            if fails and where == "epoch_end" and epoch == 1:
                raise OSError("no disk at epoch_end")

        def on_test_batch_end(self, batch, logs=None):
            if fails and where == "validation" and self.epoch == 1:
                raise OSError("no disk in validation")

    callback = Fails()
    whole = model.train_step

    def train_step(*data):
        if fails and where == "train_step" and callback.epoch == 1:
            raise OSError("no disk in train_step")
        return whole(*data)

    model.train_step = train_step
    # What is compiled fails once at most, as it is traced.
    model.run_eagerly = where == "train_step"

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if fails and where == "data" and callback.epoch == 1 and index == 2:
                raise OSError("no disk for data")
            part = slice(6 * index, 6 * index + 6)
            return x[part], y[part]

    def fit(callbacks):
        return model.fit(
            Batches(),
            epochs=3,
            verbose=0,
            shuffle=False,
            callbacks=callbacks,
            validation_data=(x, y),
        )

    first = message_of(lambda: fit([callback]))
    fails = False
    history = fit([]).history
    return first, history, state_of(model)


@pytest.mark.parametrize("where", WHERE)
def test_all_hear_of_one_that_fails_and_train_again(where):
    found = ranks(failing_worker, 3, where, timeout_s=120)

    assert found[1][0][0] in ("OSError", "ValueError"), found[1][0]
    assert "no disk" in found[1][0][1]
    for rank in (0, 2):
        kind, text = found[rank][0]
        assert kind == "RankMismatchError", text
        assert "no disk" in text
        assert "ank 1" in text
    assert len({str(history) for _, history, _ in found}) == 1
    assert_equal_on_all([state for _, _, state in found])


# What one rank alone is given, or has, that `fit` refuses.
REFUSED = ["backup", "averages", "steps"] + (["values"] if BACK_END == "jax" else [])


def refusing_worker(what, folder):
    """Rank 1 is refused; then all train."""
    ring, keras, model = begun()
    refused = ring.rank() == 1
    given = {"verbose": 0}
    data = data_of(ring.rank())
    if what == "backup":
        layers = [model.layers[0]]
        optimizer = ring.DistributedOptimizer("sgd", local_layers=layers)
        model.compile(optimizer, loss="mse")
        backup = keras.callbacks.BackupAndRestore(folder)
        given["callbacks"] = [backup] if refused else []
    elif what == "averages":
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        backup = keras.callbacks.BackupAndRestore(folder)
        given["callbacks"] = [swap, backup] if refused else []
    elif what == "steps":
        data = [ring.data.join(data)]
        given["steps_per_epoch"] = 5 if refused else None
    elif refused:
        for weight in model.weights:
            weight.value.delete()
    told = message_of(lambda: model.fit(*data, **given))

    _, _, model = begun()
    history = model.fit(*data_of(ring.rank()), epochs=2, verbose=0).history
    return told, history, state_of(model)


@pytest.mark.parametrize("what", REFUSED)
def test_all_hear_of_what_one_is_refused(what, tmp_path):
    found = ranks(refusing_worker, 3, what, str(tmp_path / "backup"), timeout_s=60)

    code = {"values": "[RK664]", "averages": "[RK516]"}.get(what, "[RK660]")
    assert found[1][0][0] == "RingKerasError" and code in found[1][0][1], found[1][0]
    for rank in (0, 2):
        kind, text = found[rank][0]
        assert kind == "RankMismatchError", text
        assert text.startswith("[RK310]") and code in text and "ank 1" in text
    assert len({str(history) for _, history, _ in found}) == 1
    assert_equal_on_all([state for _, _, state in found])


def uneven_worker():
    ring, _, model = begun()
    x, y = data_of(ring.rank(), 24 - 6 * ring.rank())
    early = message_of(lambda: model.fit(x, y, batch_size=6, epochs=2, verbose=0))

    model.steps_per_execution = 2 if HAS_EXECUTIONS else 1
    late = message_of(lambda: model.fit(batches_of(x, y), epochs=1, verbose=0))
    return early, late


def test_ranks_with_other_numbers_of_batches_are_told():
    for early, late in ranks(uneven_worker, 2):
        assert early[0] == "RankMismatchError"
        assert early[1].startswith("[RK326] fit(): steps per epoch differ")
        assert late[0] == "RankMismatchError"
        assert late[1].startswith("[RK318] fit(): after 3 steps of the epoch ranks [1]")


def of_unknown_length(x, y):
    """Of a generator Keras 3.16 drops batches on torch, as it builds the model."""
    if BACK_END == "jax":
        return batches_of(x, y)
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):
        def __iter__(self):
            return batches_of(x, y)

    return DataLoader(Batches(), batch_size=None)


def uneven_within_worker(batches):
    """Data of unknown length end within an execution of four steps."""
    ring, _, model = begun()
    x, y = data_of(ring.rank(), 6 * batches[ring.rank()])
    model.compile(model.optimizer, "mse", steps_per_execution=4)
    told = message_of(lambda: model.fit(of_unknown_length(x, y), verbose=0))
    return told, int(model.optimizer.iterations)


# Batches of each rank, and the error of all. One of them compares weights after as many
# steps as the first rank has, as it begins to wait for none.
@pytest.mark.parametrize(
    ("batches", "ended"),
    [((6, 8), "[0]"), ((6, 7), "[0]"), ((8, 5), "[1]"), ((6, 6), "")]
    if HAS_EXECUTIONS
    else [],
)
@pytest.mark.parametrize("every", ["1", "3"])
def test_ranks_that_run_out_of_data_compare_no_weights(batches, ended, every):
    found = ranks(
        uneven_within_worker,
        2,
        batches,
        env={"RING_KERAS_CHECK_STEPS": every},
        timeout_s=60,
    )

    for told, steps in found:
        assert steps == min(batches)
        if not ended:
            assert told is None
            continue
        kind, text = told
        assert kind == "RankMismatchError"
        assert text.startswith(
            f"[RK318] fit(): after {steps} steps of the epoch ranks {ended} have run"
        )


def stopping_worker():
    ring, keras, model = begun(seed=ring_rank())

    class Stops(keras.callbacks.Callback):
        def __init__(self, batch, epoch):
            super().__init__()
            self.when = batch, epoch
            self.epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if ring.rank() == 1 and (batch, self.epoch) == self.when:
                self.model.stop_training = True

        def on_epoch_end(self, epoch, logs=None):
            if ring.rank() == 0 and self.when == (None, epoch):
                self.model.stop_training = True

    x, y = data_of(ring.rank())
    counts = []
    for when in [(1, 1), (None, 2)]:
        history = model.fit(
            x, y, batch_size=6, epochs=5, verbose=0, callbacks=[Stops(*when)]
        )
        counts.append((len(history.epoch), int(model.optimizer.iterations)))
    return counts, state_of(model)


def ring_rank():
    import ring_keras as ring

    ring.init()
    return ring.rank()


def test_all_stop_where_one_does():
    found = ranks(stopping_worker, 2)

    # An epoch of 4 steps and 2 more; then three epochs.
    assert [counts for counts, _ in found] == [[(2, 6), (3, 18)]] * 2
    assert_equal_on_all([state for _, state in found])


def reading_worker(directory):
    ring, keras, model = begun()
    x, y = data_of(ring.rank())
    path = Path(directory) / "model.keras"
    callbacks = [
        keras.callbacks.ModelCheckpoint(path),
        keras.callbacks.CSVLogger(Path(directory) / "log.csv"),
        keras.callbacks.EarlyStopping("val_mae", restore_best_weights=True),
    ]
    model.fit(
        x, y, batch_size=6, epochs=3, verbose=0, callbacks=callbacks,
        validation_data=(x, y),
    )  # fmt: skip
    loaded = keras.models.load_model(path)
    ring.allgather_object(None)
    own = model.evaluate(x, y, verbose=0)
    seeds = [int(layer.seed_generator.state.numpy()[0]) for layer in model.layers[2:3]]
    return state_of(model), state_of(loaded), own, seeds


def test_one_writes_files_and_all_hold_one_model(tmp_path):
    found = ranks(reading_worker, 2, str(tmp_path))

    assert_equal_on_all([states for states, *_ in found])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "log.csv",
        "model.keras",
    ]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    # `evaluate` alone asks nobody.
    assert found[0][2] != found[1][2]
    assert found[0][3] != found[1][3], "one seed would drop the same units everywhere"


def backup_worker(directory, epochs):
    ring, keras, model = begun(seed=ring_rank())
    x, y = data_of(ring.rank())

    class Dies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == epochs:
                raise RuntimeError("dies")

    begins = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begins.append(epoch)
    )
    backup = keras.callbacks.BackupAndRestore(directory, delete_checkpoint=False)
    message_of(
        lambda: model.fit(
            x, y, batch_size=6, epochs=4, verbose=0, callbacks=[backup, note, Dies()]
        )
    )
    return begins, state_of(model)


def test_a_backup_of_the_first_rank_is_restored_on_all(tmp_path):
    ranks(backup_worker, 2, str(tmp_path / "backup"), 1)
    found = ranks(backup_worker, 2, str(tmp_path / "backup"), None)

    assert [begins for begins, _ in found] == [[2, 3]] * 2
    assert_equal_on_all([state for _, state in found])


def dying_worker():
    ring, keras, model = begun()
    x, y = data_of(ring.rank())

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ring.rank() == 1 and batch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    return message_of(
        lambda: model.fit(x, y, batch_size=6, verbose=0, callbacks=[Dies()])
    )


def test_a_rank_that_dies_is_named():
    survivor, _ = ranks(dying_worker, 2, check=False)

    kind, text = survivor.result
    assert kind == "PeerLostError"
    assert "rank 1" in text


def loop_worker():
    """Without `fit`; and an optimizer that trains other variables on one rank."""
    ring, keras, model = begun(seed=ring_rank())
    x, y = (keras.ops.convert_to_tensor(part) for part in data_of(ring.rank()))
    for step in range(4):
        part = slice(6 * step, 6 * step + 6)
        model.train_on_batch(x[part], y[part])
    trained = [weight.numpy() for weight in model.trainable_weights]
    weights = model.trainable_weights
    if ring.rank() == 1:
        weights = [weights[2], weights[1], *weights[3:]]
    gradients = [keras.ops.ones_like(weight.value) for weight in weights]
    differs = message_of(lambda: model.optimizer.apply(gradients, weights))
    alone = message_of(lambda: ring.DistributedOptimizer("sgd", shard_state=True))
    others = message_of(lambda: ring.DistributedOptimizer(model.optimizer, op="sum"))
    unknown = message_of(lambda: ring.DistributedOptimizer("sgd", sharded=True))
    callbacks = message_of(lambda: ring.callbacks.Elastic())
    return trained, differs, alone, others, unknown, callbacks


def test_a_loop_trains_one_model_and_errors_are_told():
    found = ranks(loop_worker, 2)

    assert_equal_on_all([trained for trained, *_ in found])
    for _, differs, alone, others, unknown, callbacks in found:
        assert differs[0] == "RankMismatchError", differs
        assert alone == (
            "ValueError",
            "[RK660] ring_keras.DistributedOptimizer(shard_state=True) is not there "
            f"yet with Keras's back end {BACK_END}. Leave it out, or set "
            "KERAS_BACKEND=tensorflow.",
        )
        assert others[1].startswith("[RK420]")
        assert unknown[0] == "TypeError"
        assert callbacks[1].startswith("[RK137] ring_keras.callbacks")


def same_data_worker(kind):
    _, _, model = begun(seed=ring_rank())
    x, y = data_of(0)
    if kind == "arrays":
        model.fit(x, y, batch_size=6, epochs=2, verbose=0)  # Shuffled by each rank.
        return
    model.fit(batches_of(x, y), verbose=0)


@pytest.mark.parametrize("kind", ["arrays", "batches"])
def test_the_same_data_on_all_ranks_are_noticed(kind):
    said = [one.stderr for one in ranks(same_data_worker, 2, kind, check=False)]

    assert [text.count("[RK503]") for text in said] == [1, 0], said


def lone_worker():
    """Data are divided, and the optimizer is forgotten; then it is not."""
    ring, keras, model = begun(seed=ring_rank())
    x, y = ring.data.shard(data_of(0))
    alone = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    alone.compile("sgd", loss="mse")
    model.fit(x, y, verbose=0)
    for _ in range(2):
        alone.fit(x, y, verbose=0)


def test_training_alone_on_divided_data_is_told_once():
    said = [one.stderr for one in ranks(lone_worker, 2, check=False)]

    assert [text.count("[RK651]") for text in said] == [1, 0], said
    assert "[RK503]" not in "".join(said)


def barrier_worker(path):
    """One writes a file, which all read after the barrier; then a pair meets."""
    ring = begin()
    file = Path(path)
    if ring.rank() == 2:
        file.write_text("whole")
    ring.barrier()
    read = file.read_text()
    pair = ring.add_process_set([0, 2])
    if ring.rank() != 1:
        ring.barrier(name="pair", process_set=pair)
    ring.barrier()
    return read


def test_a_barrier_waits_for_all(tmp_path):
    assert ranks(barrier_worker, 3, str(tmp_path / "file")) == ["whole"] * 3


def compressed_worker(compression):
    """Ranks of two hosts, in one step of which a weight becomes the mean gradient."""
    os.environ["RING_KERAS_HOST_NAME"] = f"host{os.environ['RING_KERAS_RANK']}"
    ring = begin()
    import keras

    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    optimizer = ring.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=compression
    )
    model.compile(optimizer, loss="mse")
    rows = np.full((2, 1), 1.0 + ring.rank() / 1000, "float32")
    model.fit(rows, np.ones((2, 1), "float32"), batch_size=2, verbose=0)
    return float(np.asarray(model.weights[0])[0, 0])


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_gradients_travel_compressed_between_hosts(compression):
    first, second = ranks(compressed_worker, 2, compression)

    assert first == second
    exact = 2 * 1.0005
    assert (abs(first - exact) < 1e-6) == (compression == "none")
    np.testing.assert_allclose(first, exact, rtol=2**-8)


def narrow_worker():
    """All in 16 bits, and ranks have other numbers of examples in what they add up."""
    ring = begin()
    import keras

    keras.config.set_dtype_policy("bfloat16")
    keras.utils.set_random_seed(1)
    x, y = data_of(ring.rank(), 10 + 2 * ring.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)
    model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)
    weights = [weight.value for weight in model.weights]
    return [keras.ops.convert_to_numpy(keras.ops.cast(w, "float32")) for w in weights]


def test_gradients_of_16_bits_are_added_up():
    found = ranks(narrow_worker, 2)

    assert_equal_on_all(found)
    assert found[0][0].any()


def averages_worker(folder):
    """Backups that would have averages in place of weights."""
    ring, keras, model = begun()
    backup = keras.callbacks.BackupAndRestore(folder)
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    data = data_of(ring.rank())
    return [
        message_of(lambda saver=saver: model.fit(*data, callbacks=[swaps, saver]))
        for saver in (backup, ring.callbacks.RootOnly(backup))
    ]


def test_backups_of_averages_are_refused_on_all_ranks(tmp_path):
    for found in ranks(averages_worker, 2, str(tmp_path / "backup")):
        for kind, text in found:
            assert kind == "RingKerasError", text
            assert "[RK516] BackupAndRestore would save the averages" in text
