"""TensorBoard's files of a `fit` on several ranks."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from support import run_ranks, training
from support.event_files import event_files, read
from support.slowed_training import train

import ring_keras as ring
from ring_keras.callbacks.tensorboard import TensorBoard
from ring_keras.monitoring import records
from ring_keras.monitoring.history import History, Table
from ring_keras.monitoring.rows import Update
from ring_keras.training.distributed_models import process_set_of


def own_folder(directory):
    """Each rank has another, so that it shows who writes."""
    return Path(directory) / f"rank{ring.rank()}"


def train_in_own_folder(directory, **options):
    train(own_folder(directory), **options)


def what_costs(directory, steps, update_freq):
    """How often the callback asks which ranks train its model, and how often what it
    inherits takes a value to TensorFlow or a file to the disk.
    """
    calls = Counter()

    def count(frame, event, argument):
        if event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        if frame.f_code is process_set_of.__code__:
            asks = frame.f_back.f_globals["__name__"] == TensorBoard.__module__
            calls["looks through the model"] += asks
        elif "summary" in module and frame.f_code.co_name in {"flush", "scalar"}:
            calls[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        train_in_own_folder(directory, steps=steps, update_freq=update_freq)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("update_freq", [100, "epoch"])
def test_a_batch_that_is_not_written_costs_nothing(tmp_path, rank_pool, update_freq):
    costs = [
        rank_pool(2).run(what_costs, args=(tmp_path, steps, update_freq))
        for steps in (3, 9)
    ]
    assert costs[0] == costs[1]
    assert all(costs[0][0][name] > 0 for name in ("looks through the model", "scalar"))


class WritesItself(keras.callbacks.Callback):
    """A program's own summaries, as far as the callback before it lets them through."""

    def on_train_batch_end(self, batch, logs=None):
        tf.summary.scalar("own_train", batch)

    def on_test_batch_end(self, batch, logs=None):
        tf.summary.scalar("own_test", batch)


def write_beside(directory, board_class):
    """Twice, with batches of tests between, in which other batches are due."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    board = board_class(own_folder(directory) / board_class.__module__, update_freq=4)
    if board_class is not TensorBoard:
        board = ring.callbacks.RootOnly(board)
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), board]
    if ring.rank() == 0:
        callbacks.append(WritesItself())
    x = tf.ones([18, 3])
    for _ in range(2):
        model.fit(
            *(x, x[:, :1]),
            batch_size=2,
            epochs=2,
            verbose=0,
            validation_data=(x[:6], x[:6, :1]),
            validation_batch_size=1,
            callbacks=callbacks,
        )


def written_by(directory, board_class):
    """Tag, step and value of each scalar, but for times, in order."""
    found = []
    for folder in ("train", "validation"):
        path = directory / "rank0" / board_class.__module__ / folder
        for file in event_files(path):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                found += [
                    (
                        folder,
                        event.step,
                        value.tag,
                        float(tf.make_ndarray(value.tensor)),
                    )
                    for value in event.summary.value
                    if not value.tag.startswith("ring/") and value.tag != "keras"
                ]
    return found


@pytest.mark.slow
def test_it_writes_what_keras_own_does(tmp_path, rank_pool):
    classes = (keras.callbacks.TensorBoard, TensorBoard)
    for board_class in classes:
        rank_pool(2).run(write_beside, args=(tmp_path, board_class))
    expected, found = (written_by(tmp_path, one) for one in classes)
    assert found == expected
    tags = {tag for _, _, tag, *_ in expected}
    assert {"own_train", "own_test", "batch_loss"} <= tags


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_rank_writes_for_all(tmp_path, rank_pool, size):
    worker = functools.partial(
        train_in_own_folder,
        tmp_path,
        steps=12,
        slow_compute=1,
        seconds=0.1,
        update_freq=4,
    )
    rank_pool(size).run(worker)
    # The others wrote nothing at all.
    assert [path.name for path in tmp_path.iterdir()] == ["rank0"]
    scalars, contents = read(tmp_path / "rank0" / "train")

    # Every 4 of 24 steps; at the end of an epoch nothing is new.
    steps = [step for step, _ in scalars["ring/duration_s"]]
    assert steps == [4, 8, 12, 16, 20, 24]
    for tag in ("compute_s", "input_s", "wait_s", "exposed_s", "overlap_s"):
        assert len(scalars[f"ring/{tag}"]) == len(steps)
    for step in range(len(steps)):
        parts = ("compute_s", "input_s", "wait_s", "exposed_s")
        total = sum(scalars[f"ring/{tag}"][step][1] for tag in parts)
        assert scalars["ring/duration_s"][step][1] == pytest.approx(total, rel=1e-3)
    # A loaded machine may hold up another one now and then, not all the time.
    assert 1 in {rank for _, rank in scalars["ring/straggler_rank"]}
    assert 0 < scalars["ring/scaling_efficiency"][-1][1] < 1
    assert 0 < scalars["ring/bucket_fill"][-1][1] <= 1
    assert scalars["ring/bytes_per_step"][-1][1] > 0
    of_ranks = [scalars[f"ring/examples_per_s/rank_{r}"][-1][1] for r in range(size)]
    together = scalars["ring/examples_per_s"][-1][1]
    assert together == pytest.approx(sum(of_ranks), rel=1e-3)

    updates = [Update.from_json(s, 0.0, c) for s, c in contents[records.ROWS]]
    history = History.of(map(Table.of, updates))
    assert history.ranks == tuple(range(size))
    # The first one was traced.
    assert sum(update.steps for update in updates) == 23
    assert sum(row.examples for u in updates for row in u.rows) == 23 * 8 * size
    # All ranks, the same step, with its collectives, and no step twice.
    numbers = []
    for _, ranks in contents[records.STEPS]:
        assert [rank["rank"] for rank in ranks] == list(range(size))
        [number] = {rank["step"] for rank in ranks}
        numbers.append(number)
        for rank in ranks:
            names = [one["name"] for one in rank["collectives"]]
            assert any(name.startswith("gradients/bucket") for name in names)
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 5
    assert contents[records.EVENTS][0][1][0]["kind"] == "membership"


def train_with_keras_own(directory, listed):
    """Keras's callback, as scripts list it that know nothing of ours."""
    log_dir = Path(directory)
    if listed == "a file for each rank":
        log_dir /= f"rank{ring.rank()}"
    board = keras.callbacks.TensorBoard(log_dir, update_freq=2)
    callbacks = {
        "in RootOnly": [ring.callbacks.RootOnly(board)],
        "on rank 1 alone": [board] if ring.rank() == 1 else [],
        "beside ours": [board, ring.callbacks.TensorBoard(log_dir / "ours")],
    }.get(listed, [board])
    training.fit(
        training.distributed_model(1),
        ring.data.shard(training.dataset(training.steps_of(8, ring.size()))),
        training.BATCH,
        epochs=2,
        callbacks=callbacks,
    )


@pytest.mark.parametrize(
    "listed",
    [
        "on every rank",
        pytest.param("in RootOnly", marks=pytest.mark.slow),
        *(
            pytest.param(listed, marks=pytest.mark.slow)
            for listed in ("on rank 1 alone", "a file for each rank", "beside ours")
        ),
    ],
)
def test_keras_own_has_all_ranks_numbers_too(tmp_path, rank_pool, listed):
    rank_pool(2).run(train_with_keras_own, args=(tmp_path, listed), timeout_s=60)
    per_rank = listed == "a file for each rank"
    scalars, contents = read(tmp_path / ("rank0" if per_rank else "") / "train")
    if per_rank:
        others, _ = read(tmp_path / "rank1" / "train")
        assert "ring/duration_s" not in others
    if listed == "beside ours":
        assert "ring/duration_s" not in scalars
        scalars, contents = read(tmp_path / "ours" / "train")
    else:
        steps = [step for step, _ in scalars["ring/duration_s"]]
        assert steps == [2, 4, 6, 8, 10, 12, 14, 16]
    # All steps of both ranks, but the one that was traced.
    rows = [row for _, rows in contents[records.ROWS] for row in rows]
    for rank in (0, 1):
        assert sum(row["steps"] for row in rows if row["rank"] == rank) == 15
    assert contents[records.STEPS]
    assert contents[records.EVENTS]


class SlowCallback(keras.callbacks.Callback):
    """On rank 1, after each batch: the others wait before the next one."""

    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1:
            time.sleep(0.03)


def train_with_slow_callback(directory):
    """Two calls of `fit`; the engine counts on, and the second model from 1."""
    for name in ("before", "board"):
        board = ring.callbacks.TensorBoard(own_folder(directory) / name, update_freq=1)
        training.fit(
            training.distributed_model(1),
            ring.data.shard(training.dataset(training.steps_of(8, ring.size()))),
            training.BATCH,
            callbacks=[ring.callbacks.MetricAverage(), board, SlowCallback()],
        )


def waits_of(rank):
    """Of a rank's step: how long one of its collectives waited for another rank."""
    spans = sorted(
        (max(one["at_s"][0], 0.0), min(one["at_s"][1], rank["duration_s"]))
        for one in rank["collectives"]
        if one["last_rank"] not in (None, rank["rank"])
    )
    until = total = 0.0
    for begin, end in spans:
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total


@pytest.mark.slow
def test_a_steps_collectives_are_all_that_it_waited_for(tmp_path, rank_pool):
    rank_pool(2).run(train_with_slow_callback, args=(tmp_path,))
    scalars, contents = read(tmp_path / "rank0" / "board" / "train")
    recorded = [rank for _, ranks in contents[records.STEPS] for rank in ranks]
    for rank in recorded:
        assert waits_of(rank) >= rank["wait_s"] - 1e-3, rank
    names = {one["name"] for rank in recorded for one in rank["collectives"]}
    assert "fit/goes_on" in names
    # They are numbered as all else on TensorBoard's axis.
    last = scalars["ring/duration_s"][-1][0]
    assert last - 1 <= max(rank["step"] for rank in recorded) <= last


def train_in_buckets(directory, **options):
    """40 layers of one weight and one bias each, which are 4 bytes."""
    layers = [keras.layers.Dense(1, input_shape=(1,)) for _ in range(40)]
    model = keras.Sequential(layers)
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1e-6), **options)
    model.compile(optimizer, "mse")
    callback = ring.callbacks.TensorBoard(own_folder(directory), update_freq=2)
    x = tf.ones([8, 1])
    model.fit(x, x, batch_size=2, verbose=0, callbacks=[callback])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "bytes_and_fills"),
    [
        ({"bucket_size_bytes": 4}, [(4, 1.0)] * 80),
        ({"bucket_size_bytes": 200}, [(200, 1.0), (120, 0.6)]),
        ({"num_groups": 2}, [(160, None)] * 2),
    ],
)
def test_buckets_are_those_of_the_plan(tmp_path, rank_pool, options, bytes_and_fills):
    rank_pool(2).run(train_in_buckets, args=(tmp_path,), kwargs=options)
    scalars, contents = read(tmp_path / "rank0" / "train")
    buckets = contents[records.TOTALS][-1][1]["buckets"]
    found = [(bucket["bytes"], bucket["fill"]) for bucket in buckets]
    assert found == bytes_and_fills
    assert [bucket["name"] for bucket in buckets] == [
        f"gradients/bucket{number}" for number in range(len(found))
    ]
    fills = [fill for _, fill in found if fill is not None]
    mean = pytest.approx(sum(fills) / len(fills)) if fills else None
    last = scalars.get("ring/bucket_fill")
    assert (last and last[-1][1]) == mean


def test_the_last_epochs_checkpoint_is_told_too(tmp_path, rank_pool):
    worker = functools.partial(
        train_in_own_folder, tmp_path, steps=2, checkpoint=tmp_path / "best.weights.h5"
    )
    rank_pool(2).run(worker)
    _, contents = read(tmp_path / "rank0" / "train")
    kinds = [event["kind"] for _, found in contents[records.EVENTS] for event in found]
    assert kinds == ["membership", "checkpoint", "checkpoint"]


def test_updates_of_epochs(tmp_path, rank_pool):
    worker = functools.partial(
        train_in_own_folder, tmp_path, steps=4, update_freq="epoch"
    )
    rank_pool(2).run(worker)
    scalars, _ = read(tmp_path / "rank0" / "train")
    assert [step for step, _ in scalars["ring/duration_s"]] == [4, 8]


def everything_of_keras(directory):
    """Twice: nothing of the first `fit` is left over for the second."""
    folder = own_folder(directory)
    model = training.distributed_model(1)
    data = ring.data.shard(training.dataset(training.steps_of(8, ring.size())))
    callback = ring.callbacks.TensorBoard(
        folder,
        histogram_freq=1,
        embeddings_freq=1,
        write_images=True,
        write_steps_per_second=True,
        profile_batch=(2, 4),
        update_freq="batch",
    )
    for _ in range(2):
        training.fit(
            model,
            data,
            training.BATCH,
            epochs=2,
            validation_data=training.dataset(8).batch(4),
            callbacks=[ring.callbacks.MetricAverage(), callback],
        )
    return training.as_bytes(model.get_weights())


@pytest.mark.slow
def test_what_keras_writes_holds_nobody_up(tmp_path, rank_pool):
    weights = rank_pool(2).run(everything_of_keras, args=[tmp_path], timeout_s=150)
    assert weights[0] == weights[1]
    assert [path.name for path in tmp_path.iterdir()] == ["rank0"]
    folder = tmp_path / "rank0" / "train"
    tags = {
        value.tag
        for file in folder.glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    }
    assert {"epoch_loss", "batch_loss", "keras", "ring/duration_s"} <= tags
    assert any(tag.endswith("/histogram") for tag in tags)
    assert list(folder.glob("plugins/profile/*"))
    assert (folder / "keras_embedding.ckpt-1.weights.h5").exists()
    assert (folder.parent / "projector_config.pbtxt").exists()
    assert list((tmp_path / "rank0" / "validation").glob("events*"))


class Raises(keras.callbacks.Callback):
    """On all ranks, in the third step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise ValueError("not this one")


def fit_again_after_one_that_raised(directory):
    data = ring.data.shard(training.dataset(training.steps_of(8, ring.size())))
    for name in ("raised", "went well"):
        board = ring.callbacks.TensorBoard(own_folder(directory) / name, update_freq=1)
        callbacks = [ring.callbacks.MetricAverage(), board]
        if name == "raised":
            callbacks.append(Raises())
        try:
            training.fit(
                training.distributed_model(1),
                data,
                training.BATCH,
                callbacks=callbacks,
            )
        except ValueError as error:
            assert str(error) == "not this one"
        # A later `fit` without a writer of its own would write there.
        del callbacks
        assert not tf.summary.should_record_summaries()
    del board
    gc.collect()
    gathers = [one for one in threading.enumerate() if one.name == "tensorboard"]
    for thread in gathers:
        thread.join(30)
    return sum(thread.is_alive() for thread in gathers)


@pytest.mark.slow
def test_a_fit_that_raised_leaves_nothing_to_the_next_one(tmp_path, rank_pool):
    worker = functools.partial(fit_again_after_one_that_raised, tmp_path)
    assert rank_pool(2).run(worker, timeout_s=60) == [0, 0]
    for name, steps in (("raised", 2), ("went well", 7)):
        _, contents = read(tmp_path / "rank0" / name / "train")
        rows = [rows for _, rows in contents[records.ROWS]]
        for rank in (0, 1):
            assert sum(of[rank]["steps"] for of in rows) == steps


def given_to_one_rank(directory):
    callbacks = [ring.callbacks.MetricAverage()]
    if ring.rank() == 0:
        callbacks.append(ring.callbacks.TensorBoard(directory))
    model = training.distributed_model(1)
    with pytest.raises(ring.RankMismatchError, match="callbacks"):
        training.fit(
            model, ring.data.shard(training.dataset(16)), 4, callbacks=callbacks
        )


def test_given_to_one_rank_alone_is_an_error_on_all(tmp_path, rank_pool):
    rank_pool(2).run(given_to_one_rank, args=[tmp_path])


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if ring.rank() == 1 and batch == 6:
            raise OSError("the disk of rank 1 is full")


def fail_in_the_middle(directory):
    ring.init()
    model = training.distributed_model(1)
    training.fit(
        model,
        ring.data.shard(training.dataset(training.steps_of(40, ring.size()))),
        training.BATCH,
        callbacks=[Fails(), ring.callbacks.TensorBoard(directory, update_freq=1)],
    )


@pytest.mark.slow
def test_a_rank_that_fails_leaves_nobody_waiting(tmp_path):
    worker = functools.partial(fail_in_the_middle, tmp_path)
    outcomes = run_ranks(worker, 2, check=False, timeout_s=90)
    assert "the disk of rank 1 is full" in outcomes[1].message, outcomes[1].describe()
    assert outcomes[0].exception_type == "RankMismatchError", outcomes[0].describe()
    _, contents = read(tmp_path / "train")
    faults = [
        event
        for _, events in contents[records.EVENTS]
        for event in events
        if event["kind"] == "fault"
    ]
    # Rank 0 had sent what it did in the step of which rank 1 sent nothing.
    [kind] = [fault["text"].split(":")[0] for fault in faults]
    assert kind in ("PeerLostError", "RingKerasError")  # Rank 0 leaves, too.
    # What had been gathered until then is there.
    assert sum(len(rows) > 0 for _, rows in contents[records.ROWS]) >= 1


class Predicts(keras.callbacks.Callback):
    """With the callbacks of the `fit` it is in."""

    def __init__(self, board):
        super().__init__()
        self.board = board

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.predict(tf.zeros([1, 6]), verbose=0, callbacks=[self.board])


def predict_inside_fit_and_fit_again(directory):
    board = ring.callbacks.TensorBoard(own_folder(directory))
    model = training.distributed_model(1)
    data = ring.data.shard(training.dataset(64))
    callbacks = [ring.callbacks.BroadcastGlobalVariables(), board, Predicts(board)]
    for _ in range(2):
        training.fit(model, data, 4, callbacks=callbacks)
        model.evaluate(data.batch(4), verbose=0, callbacks=[board])


@pytest.mark.slow
def test_a_predict_inside_fit_does_not_end_the_writing(tmp_path, rank_pool):
    rank_pool(2).run(functools.partial(predict_inside_fit_and_fit_again, tmp_path))
    tags = Counter(
        value.tag
        for file in (tmp_path / "rank0" / "train").glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    )
    assert tags["epoch_loss"] == 2
    assert not (tmp_path / "rank1").exists()


class StopsOnRank1(keras.callbacks.Callback):
    """Sets `stop_training` there alone, in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and ring.rank() == 1:
            self.model.stop_training = True


def stop_on_one_rank(directory):
    model = training.distributed_model(1)
    board = ring.callbacks.TensorBoard(own_folder(directory), update_freq=1)
    training.fit(
        model,
        ring.data.shard(training.dataset(64)),
        4,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            board,
            StopsOnRank1(),
        ],
    )
    return int(model.optimizer.iterations)


def test_a_rank_that_stops_alone_leaves_nobody_waiting(tmp_path, rank_pool):
    worker = functools.partial(stop_on_one_rank, tmp_path)
    assert rank_pool(2).run(worker, timeout_s=60) == [3, 3]
