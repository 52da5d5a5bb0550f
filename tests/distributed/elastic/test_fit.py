"""A `fit` that goes on while real processes are killed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.ringrun import Ringrun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ring_keras.callbacks.checkpoint_files import CheckpointFiles
from ring_keras.callbacks.checkpoint_reading import whole_checkpoint

# On all ranks row i of `counts` is how often example i was trained on, `total` how
# often any was, and `calls` the number of steps: gradients are summed, and all numbers
# are small integers. Each process dies where CASE says: before a step, or in the
# backward pass of one, when the others have begun theirs.
_FIT = """
import hashlib, json
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras.keras_internals import steps_done
from ring_keras.lifecycle.elastic_launcher import others_wait
from ring_keras.training.distributed_fit import DistributedFit

case = json.loads(CASE)
number = rank
COUNT, EPOCHS = case.get("count", 48), case.get("epochs", 3)
ring.init()


def die_if_it_is_time(where, step):
    if [number, where, int(step)] in case["deaths"]:
        os.kill(os.getpid(), signal.SIGKILL)


def execution_is_done(fit, end=DistributedFit.execution_is_done):
    end(fit)
    if [number, steps_done(model.optimizer)] == case.get("interrupted"):
        case["interrupted"] = None
        raise ring.PeerLostError("as if a rank had been lost, here alone")


DistributedFit.execution_is_done = execution_is_done


@tf.custom_gradient
def tripwire(x):
    def backward(gradient):
        def check():
            die_if_it_is_time("backward", Dies.step)
            return 0.0

        with tf.control_dependencies([tf.py_function(check, [], tf.float32)]):
            return tf.identity(gradient)

    return tf.identity(x), backward


class Adds(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
            if case.get("trips", True):
                x = tripwire(x)
        return x + self.total


class Negative(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred


class Dies(keras.callbacks.Callback):
    sizes = []
    step = 0

    def on_train_begin(self, logs=None):
        die_if_it_is_time("train_begin", 0)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.sizes[-1:] != [ring.size()]:
            self.sizes.append(ring.size())
        Dies.step = steps_done(self.model.optimizer)
        die_if_it_is_time("begin", Dies.step)
        if self.epoch == case.get("waits_in") and ring.size() == 1:
            deadline = time.monotonic() + 200  # It imports TensorFlow first.
            while not others_wait():
                assert time.monotonic() < deadline, "no replacement"
                time.sleep(0.01)

    def on_test_end(self, logs=None):
        die_if_it_is_time("validation", self.epoch)

    def on_epoch_end(self, epoch, logs=None):
        die_if_it_is_time("epoch", epoch)


x = np.eye(COUNT, dtype=np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros((COUNT, 1), np.float32)))
train = ring.data.shard(dataset, seed=1).batch(2).prefetch(2)
test = ring.data.shard(dataset, remainder="keep").batch(8)
model = keras.Sequential(
    [
        keras.Input((COUNT,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        Adds(),
    ]
)
optimizer = ring.DistributedOptimizer(
    keras.optimizers.SGD(**{"learning_rate": 1.0, **case.get("optimizer", {})}),
    op=ring.Sum,
    bucket_size_bytes=1,
)
model.compile(optimizer, Negative(reduction="sum"), **case.get("compile", {}))
changes = []


def scale(before, after):
    changes.append([before, after])
    return 1.0


for _ in range(case.get("fits", 1)):
    stopping = keras.callbacks.EarlyStopping(
        "loss", patience=9, restore_best_weights=True
    )
    watching = []
    if "logs" in case:
        board = ring.callbacks.TensorBoard(case["logs"], update_freq=2)
        watching = [ring.callbacks.RingMetrics(), board]
    if "checkpoints" in case:
        # Of its own disk, if it does not see that of the others.
        disk = f"/{number}" if number == case.get("elsewhere") else ""
        parts = case["checkpoints"] + disk
        watching.append(ring.callbacks.Checkpoint(parts, **case["saves"]))
    history = model.fit(
        train,
        epochs=EPOCHS,
        verbose=0,
        shuffle=False,
        validation_data=test,
        callbacks=[
            Dies(),
            ring.callbacks.Elastic(scale, backup_dir=case.get("backup_dir")),
            ring.callbacks.MetricAverage(),
            ring.callbacks.RootOnly(keras.callbacks.Callback()),
            stopping,
            *watching,
        ],
    )

counts, total, calls = model.get_weights()
everything = [*model.weights, *model.optimizer.variables]
digest = hashlib.sha256(b"".join(np.array(v).tobytes() for v in everything)).hexdigest()
assert ring.allgather_object(digest) == [digest] * ring.size()
note(
    f"end.{number}",
    json.dumps(
        {
            "number": number,
            "trained": sorted(set(counts.ravel().tolist())),
            "total": float(total),
            "steps": steps_done(model.optimizer),
            "calls": float(calls),
            "sizes": Dies.sizes,
            "changes": changes,
            "epochs": history.epoch,
            "validated": history.history["val_loss"],
            "best": [stopping.best, stopping.best_epoch],
            "ring": sorted(name for name in history.history if "ring/" in name),
        }
    ),
)
"""


def fit(
    ringrun: Ringrun,
    *options: str,
    size: int,
    ends: list[int],
    first_epoch: int = 0,
    code: int = 0,
    **case: Any,
) -> list[dict[str, Any]]:
    """What each process that ends well has to say; ringrun ends with that code."""
    script = _FIT.replace("CASE", repr(json.dumps(case)))
    job = ringrun.start(script, *options, size=size)
    finished = ringrun.finish(job, 240)
    assert finished.returncode == code, finished.stderr.decode()[-6000:]
    found = [json.loads(ringrun.noted(f"end.{number}")) for number in ends]
    epochs = case.get("epochs", 3)
    passes = epochs * case.get("fits", 1)
    for one in found:
        assert one["trained"] == [passes], one
        assert one["total"] == passes * case.get("count", 48), one
        assert one["calls"] == one["steps"], one
        assert one["epochs"] == list(range(first_epoch, epochs)), one
    return found


@pytest.mark.slow
def test_every_example_is_trained_on_once_an_epoch(ringrun: Ringrun) -> None:
    deaths = [[0, "backward", 3], [1, "begin", 15]]

    (end,) = fit(
        ringrun,
        "--min-np",
        "1",
        size=3,
        ends=[2],
        deaths=deaths,
        # Process 2 is a step ahead of it then.
        interrupted=[1, 9],
    )

    # 3 + 8, 4 + 16 and 24: what was interrupted has left nothing behind.
    assert end["steps"] == 55
    assert end["sizes"] == [3, 2, 1]
    assert end["changes"] == [[3, 2], [2, 1]]


@pytest.mark.slow  # Four processes load TensorFlow.
def test_a_replacement_goes_on_where_the_others_are(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0"]

    first, second = fit(
        ringrun,
        *options,
        size=2,
        ends=[1, 2],
        deaths=[[0, "backward", 2]],
        waits_in=1,
    )

    assert first["sizes"] == [2, 1, 2]
    assert second["sizes"] == [2]
    assert first["changes"] == [[2, 1], [1, 2]]
    for name in ("best", "validated"):
        assert first[name] == second[name]


def read_scalars(logs: Path) -> list[dict[str, list[int]]]:
    """The steps of each tag, in each event file, the oldest first."""
    files = []
    for path in sorted(logs.glob("train/events.*.v2")):
        events = EventAccumulator(str(path), {"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        files.append(
            {tag: [one.step for one in events.Scalars(tag)] for tag in tags["scalars"]}
            | {
                tag: [one.step for one in events.Tensors(tag)]
                for tag in tags["tensors"]
            }
        )
    return files


@pytest.mark.slow
def test_the_first_rank_that_is_left_writes_for_tensorboard(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0"]

    ends = fit(
        ringrun,
        *options,
        size=2,
        ends=[1, 2],
        # In the middle of the second epoch.
        deaths=[[0, "backward", 14]],
        waits_in=2,
        logs=str(tmp_path),
    )

    assert [end["sizes"] for end in ends] == [[2, 1, 2], [2]]
    assert "ring/duration_s" in ends[0]["ring"]
    assert ends[0]["ring"] == ends[1]["ring"]
    lost, left = read_scalars(tmp_path)
    assert lost["epoch_loss"] == [0]
    assert left["epoch_loss"] == [1, 2]
    batches = [*lost["batch_loss"], *left["batch_loss"]]
    assert batches == sorted(set(batches))
    for written in (lost, left):
        steps = written["ring/duration_s"]
        assert steps == sorted(steps)
    assert max(lost["ring/duration_s"]) <= 14 < max(left["ring/duration_s"])


@pytest.mark.slow
def test_a_replacement_passes_by_a_fit_that_is_over(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    case = {"fits": 2, "epochs": 2, "waits_in": 1}

    # A fit of both takes 24 steps.
    fit(ringrun, *options, size=2, ends=[1, 2], deaths=[[0, "backward", 27]], **case)


@pytest.mark.slow
def test_another_fit_counts_the_steps_of_those_who_are_there(ringrun: Ringrun) -> None:
    options = ["--min-np", "1", "--max-np", "2"]
    case = {"fits": 2, "epochs": 2, "waits_in": 1}

    # One has divided the data among one rank, the other among two.
    fit(ringrun, *options, size=1, ends=[0, 1], deaths=[], **case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "ends", "deaths"),
    [
        # Two at once, of which one is rank 0, in the first step of all.
        (4, [2, 3], [[0, "backward", 0], [1, "backward", 0]]),
        # Between the sections at the end of an epoch; the last one too.
        (3, [0, 2], [[1, "validation", 1]]),
        (3, [1, 2], [[0, "epoch", 0]]),
        (3, [0, 1], [[2, "epoch", 2]]),
    ],
)
def test_a_rank_may_be_lost_anywhere(
    ringrun: Ringrun, size: int, ends: list[int], deaths: list[Any]
) -> None:
    fit(ringrun, "--min-np", "1", size=size, ends=ends, deaths=deaths)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"optimizer": {"gradient_accumulation_steps": 2, "learning_rate": 2.0}},
        {"compile": {"steps_per_execution": 3}},
        {"compile": {"jit_compile": True}, "trips": False},
        {"compile": {"run_eagerly": True}},
        {"optimizer": {"use_ema": True, "ema_momentum": 0.0}},
    ],
    ids=["accumulation", "steps_per_execution", "jit_compile", "run_eagerly", "ema"],
)
def test_variants_of_a_step_go_on(ringrun: Ringrun, case: dict[str, Any]) -> None:
    where = "backward" if case.get("trips", True) else "begin"
    deaths = [[0, where, 5]]
    fit(ringrun, "--min-np", "1", size=3, ends=[1, 2], deaths=deaths, **case)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_what_too_few_have_saved_is_gone_on_with(ringrun: Ringrun, size: int) -> None:
    backup = ringrun.directory / "backup"
    case = {"backup_dir": str(backup)}
    deaths = [[0, "begin", 15]]

    fit(ringrun, "--min-np", "2", size=2, ends=[], code=75, deaths=deaths, **case)
    assert list(backup.glob("step-*15.json"))
    ends = list(range(size))
    found = fit(
        ringrun, "--min-np", "1", size=size, ends=ends, deaths=[], first_epoch=1, **case
    )

    assert all(end["changes"] == [[2, size]] for end in found)
    assert not list(backup.iterdir())


_REFUSED = """
import keras, numpy as np, tensorflow as tf
import ring_keras as ring

ring.init()
arrays = np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32)
dataset = tf.data.Dataset.from_tensor_slices(arrays)
part = ring.data.shard(dataset, seed=1)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.zeros((2, 2), np.float32), np.zeros((2, 1), np.float32)


class AddsUpByTape(keras.Sequential):
    def train_step(self, data):
        tape = ring.DistributedGradientTape(
            tf.GradientTape(), backward_passes_per_step=2
        )
        with tape:
            loss = self.compute_loss(data[0], data[1], self(data[0]))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def refused(
    data=part,
    optimizer=None,
    built=True,
    callbacks=(),
    cls=keras.Sequential,
    **options,
):
    layers = [keras.Input((2,))] if built else []
    model = cls([*layers, keras.layers.Dense(1)])
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    ours = {"backward_passes_per_step", "op", "shard_state"}
    names = ours & options.keys()
    reducing = {name: options.pop(name) for name in names}
    model.compile(ring.DistributedOptimizer(optimizer, **reducing), "mse")
    if isinstance(data, tf.data.Dataset):
        data = data.batch(2)
    elastic = ring.callbacks.Elastic(
        options.pop("scale", None), backup_dir=options.pop("backup_dir", None)
    )
    try:
        model.fit(data, verbose=0, callbacks=[elastic, *callbacks], **options)
    except ValueError as error:
        return str(error)


SGD = keras.optimizers.SGD
decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
results = {
    "good": refused(),
    "own_sharding": refused(dataset.shard(1, 0)),
    "filtered": refused(part.filter(lambda x, y: True)),
    "kept": refused(ring.data.shard(dataset, seed=1, remainder="keep")),
    "padded": refused(ring.data.shard(dataset, remainder="pad"), op=ring.Sum),
    "steps": refused(part.repeat(), steps_per_epoch=2),
    "unbuilt": refused(built=False),
    "accumulating": refused(backward_passes_per_step=2),
    "tape": refused(cls=AddsUpByTape),
    "sharded": refused(shard_state=True, backup_dir=here / "backup"),
    "sharded_saves": refused(
        shard_state=True,
        callbacks=[keras.callbacks.ModelCheckpoint(str(here / "model.keras"))],
    ),
    "sharded_momentum": refused(
        shard_state=True,
        optimizer=SGD(0.1, momentum=0.9),
        callbacks=[ring.callbacks.LearningRateWarmup(0.1, 4)],
    ),
    "preemption": refused(callbacks=[ring.callbacks.Preemption(here / "backup")]),
    "checkpoint": refused(
        callbacks=[ring.callbacks.Checkpoint(here / "parts")],
        backup_dir=here / "backup",
    ),
    "schedule": refused(optimizer=SGD(decay), scale="linear"),
    "scheduler": refused(
        scale="linear",
        callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)],
    ),
    "root": refused(
        callbacks=[ring.callbacks.BroadcastGlobalVariables(root_rank=1)]
    ),
    "rule": refused(
        callbacks=[ring.callbacks.LearningRateSchedule(0.1, lambda epoch: 0.5**epoch)]
    ),
    "cached": refused(validation_data=part.batch(2).cache()),
    "batches": refused(validation_data=ring.data.shard(Batches())),
    "whole": refused(
        validation_data=dataset.batch(2).cache(),
        callbacks=[ring.callbacks.BroadcastGlobalVariables()],
    ),
}
import json
note("results", json.dumps(results))
"""


# A callback fails WHERE, on the ranks that FAILS names; the program trains again.
_CATCHES = """
import keras, numpy as np, tensorflow as tf
import ring_keras as ring

ring.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).random((64, 8), dtype="float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
train = ring.data.shard(data, seed=1).batch(8)


class Fails(keras.callbacks.Callback):
    def WHERE(self, number, logs=None):
        if rank in FAILS and number == 1:
            raise OSError("the disk is full")


try:
    model.fit(train, epochs=3, verbose=0, callbacks=[Fails(), ring.callbacks.Elastic()])
except OSError:
    try:
        model.fit(train, verbose=0, callbacks=[ring.callbacks.Elastic()])
    except ring.RingKerasError as error:
        note(f"error.{rank}", error)
        raise
note(f"end.{rank}", ring.size())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "fails", "ends"),
    [
        ("on_train_batch_end", [1], {0: 1}),
        ("on_epoch_end", [1], {0: 1}),
        ("on_train_batch_end", [0, 1], {0: 2, 1: 2}),
    ],
)
def test_a_rank_that_catches_its_error_is_gone_on_without(
    ringrun: Ringrun, where: str, fails: list[int], ends: dict[int, int]
) -> None:
    script = _CATCHES.replace("WHERE", where).replace("FAILS", str(fails))

    finished = ringrun.finish(ringrun.start(script, "--min-np", "1"), 100)

    assert finished.returncode == 0, finished.stderr.decode()[-6000:]
    for number, size in ends.items():
        assert ringrun.noted(f"end.{number}") == str(size)
    if 1 not in ends:
        assert "[RK350] " in ringrun.noted("error.1")
        assert b"exited with code 1" in finished.stderr


@pytest.mark.slow
def test_what_it_cannot_do_is_said(ringrun: Ringrun) -> None:
    finished = ringrun.finish(ringrun.start(_REFUSED, "--min-np", "1", size=1), 120)

    assert finished.returncode == 0, finished.stderr.decode()[-6000:]
    results = json.loads(ringrun.noted("results"))
    assert results.pop("good") is None
    assert results.pop("whole") is None
    expected = {
        "own_sharding": "was not divided by it",
        "filtered": "was treated since",
        "kept": "remainder='keep'",
        "padded": "remainder='pad'",
        "steps": "steps_per_epoch",
        "unbuilt": "a model that is built",
        "accumulating": "backward_passes_per_step",
        "tape": "[RK522] ring_keras.callbacks.Elastic ",
        "sharded": "[RK336] ring_keras.callbacks.Elastic(backup_dir=...)",
        "sharded_saves": "Elastic and ModelCheckpoint do not work",
        "sharded_momentum": "Give it momentum_correction=False",
        "preemption": "in one fit() with Preemption",
        "checkpoint": "Leave out backup_dir",
        "schedule": "follows a LearningRateSchedule",
        "scheduler": "Leave out scale",
        "rule": "in one fit() with LearningRateSchedule",
        "root": "Leave out root_rank",
        "cached": "cache() belongs before shard()",
        "batches": "divides validation_data anew",
    }
    for name, text in expected.items():
        assert text in (results[name] or ""), (name, results[name])


def checkpoint_sizes(directory: Path) -> list[tuple[int, int]]:
    """Steps and ranks of each checkpoint, which has what its examples have added up."""
    files = CheckpointFiles(directory)
    assert set(files.found()) == set(files.complete())
    for name in files.complete():
        with whole_checkpoint(files, name) as whole:
            weights = io.BytesIO(whole.weights())
        with h5py.File(weights) as file:
            counts = np.array(file["layers/dense/vars/0"])
            total = np.array(file["layers/adds/vars/0"])
        assert counts.sum() == total > 0
    return sorted((name.steps, name.size) for name in files.complete())


@pytest.mark.slow
def test_checkpoints_go_on_when_ranks_are_lost_and_come(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0"]

    ends = fit(
        ringrun,
        *options,
        size=2,
        ends=[1, 2],
        # The rank that removes old ones.
        deaths=[[0, "backward", 5]],
        waits_in=1,
        checkpoints=str(tmp_path),
        saves={"every": 2, "keep": 99},
    )

    assert ends[0]["sizes"] == [2, 1, 2]
    found = checkpoint_sizes(tmp_path)
    # Both have taken 5 steps, and one the rest of that epoch; both the two others.
    one_rank = 5 + (48 - 5 * 4) // 2
    last = ends[0]["steps"]
    # The lost rank may have been writing.
    every = set(range(2, last + 1, 2))
    assert {steps for steps, _ in found} in (every, every - {4})
    for steps, size in found:
        assert size == (2 if steps <= 4 or steps > one_rank else 1), found


@pytest.fixture
def lost(ringrun: Ringrun, tmp_path: Path) -> dict[str, Any]:
    """A job of 2 ranks that is lost in its second epoch, with a checkpoint of one."""
    case = {"checkpoints": str(tmp_path / "parts"), "saves": {}}
    deaths = [[0, "begin", 15], [1, "begin", 15]]
    job = _FIT.replace("CASE", repr(json.dumps({**case, "deaths": deaths})))
    finished = ringrun.finish(ringrun.start(job, "--min-np", "1", size=2), 240)
    assert finished.returncode != 0
    assert checkpoint_sizes(tmp_path / "parts") == [(12, 2)]
    return case


@pytest.mark.slow
def test_a_checkpoint_of_all_that_were_lost_is_continued(
    ringrun: Ringrun, lost: dict[str, Any]
) -> None:
    ends = fit(
        ringrun,
        "--min-np",
        "1",
        size=3,
        ends=[0, 1, 2],
        first_epoch=1,
        deaths=[],
        **lost,
    )
    assert {end["steps"] for end in ends} == {12 + 8 + 8}
    # Its learning rate is that of 2 ranks.
    assert [end["changes"] for end in ends] == [[[2, 3]]] * 3


@pytest.mark.slow
def test_a_checkpoint_is_continued_though_the_first_rank_is_lost(
    ringrun: Ringrun, lost: dict[str, Any]
) -> None:
    (end,) = fit(
        ringrun,
        "--min-np",
        "1",
        size=2,
        ends=[1],
        first_epoch=1,
        deaths=[[0, "train_begin", 0]],
        **lost,
    )
    assert end["steps"] == 12 + 24 + 24


@pytest.mark.slow
def test_who_comes_later_must_see_the_directory(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    case = {
        "deaths": [[0, "backward", 5]],
        "waits_in": 1,
        "checkpoints": str(tmp_path),
        "elsewhere": 2,
        "saves": {},
    }
    job = _FIT.replace("CASE", repr(json.dumps(case)))
    finished = ringrun.finish(ringrun.start(job, *options, size=2), 240)

    said = finished.stderr.decode()
    assert "[RK518] " in said and "which the first rank has just written" in said, said
    assert json.loads(ringrun.noted("end.1"))["trained"] == [3]
