"""An elastic `fit` of ranks that train apart, whose real processes are killed."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from support import training
from support.far_apart import BATCH, FRAGMENTS, Reference
from support.ringrun import Ringrun

_TESTS = str(Path(training.__file__).parents[1])

# Each process dies where CASE says: before a step, in a meeting that is due after it,
# or in validation.
_FIT = """
import json, pickle
import numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras.fit.fragment import Fragment
from ring_keras.keras_internals import steps_done
from ring_keras.lifecycle.elastic_launcher import others_wait
from ring_keras.training.distributed_fit import DistributedFit
from support import training
from support.far_apart import BATCH, INNER, OUTER

case = json.loads(CASE)
number = rank
if number in case.get("late", []):
    wait_for("begun")
ring.init()
model = training.build(1 if ring.rank() == 0 else 2)
make, _, _ = OUTER[case["outer"]]
optimizer = make(INNER[case["inner"]](), **case["options"])
model.compile(optimizer, "binary_crossentropy", **case.get("compile", {}))


def die_if_it_is_time(where):
    if [number, where, steps_done(optimizer)] in case["deaths"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def changes(self, of=Fragment.changes):
    check = tf.py_function(lambda: die_if_it_is_time("meeting"), [], tf.float32)
    with tf.control_dependencies([check]):
        return [tf.identity(change) for change in of(self)]


def execution_is_done(fit, end=DistributedFit.execution_is_done):
    end(fit)
    if [number, steps_done(optimizer)] == case.get("interrupted"):
        case["interrupted"] = None
        raise ring.PeerLostError("as if a rank had been lost, here alone")


if any(where == "meeting" for _, where, _ in case["deaths"]):
    Fragment.changes = changes
DistributedFit.execution_is_done = execution_is_done


class Dies(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        die_if_it_is_time("begin")
        waits = steps_done(optimizer) == case.get("waits_at")
        if waits and ring.size() < case["wanted"]:
            note("begun")
            deadline = time.monotonic() + 200  # It imports TensorFlow first.
            while not others_wait():
                assert time.monotonic() < deadline, "no replacement"
                time.sleep(0.01)


x, y = training.arrays()
count = case["count"]
data = tf.data.Dataset.from_tensor_slices((x[:count], y[:count]))
train = ring.data.shard(data).batch(BATCH).prefetch(2)
elastic = ring.callbacks.Elastic(backup_dir=case.get("backup_dir"))
callbacks = [Dies(), elastic, ring.callbacks.RingMetrics()]
logs = model.fit(train, epochs=2, verbose=0, callbacks=callbacks).history
figures = {tag: logs[tag] for tag in logs if tag.startswith("ring/meeting")}
(here / f"end.{number}").write_bytes(
    pickle.dumps((model.get_weights(), steps_done(optimizer), figures))
)
"""

_REPLACED = ["--blacklist-cooldown-range", "0", "0", "--max-np"]
_DILOCO: dict[str, Any] = {"inner": "sgd", "outer": "diloco"}


def fit(
    ringrun: Ringrun,
    *options: str,
    size: int,
    ends: list[int],
    code: int = 0,
    min_np: int = 1,
    **case: Any,
) -> list[Any]:
    """Of each process that ends well: weights, steps, and what the logs tell."""
    script = _FIT.replace("CASE", repr(json.dumps({"deaths": [], **case})))
    paths = os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": paths}
    options = "--min-np", str(min_np), *options
    job = ringrun.start(script, *options, size=size, env=env)
    finished = ringrun.finish(job, 240)
    assert finished.returncode == code, finished.stderr.decode()[-6000:]
    files = [ringrun.directory / f"end.{number}" for number in ends]
    assert all(file.exists() for file in files), finished.stderr.decode()[-6000:]
    return [pickle.loads(file.read_bytes()) for file in files]


class Epochs:
    """The same in one process: the algorithm, and what each rank reads of the data."""

    def __init__(self, size: int, count: int, **case: Any) -> None:
        options = case["options"]
        batches = options["sync_every"] * (2 if case["inner"] == "accumulation" else 1)
        self.ranks = Reference(
            size,
            case["inner"],
            case["outer"],
            batches,
            options.get("wire", "float32"),
            options.get("fragments", 1),
            options.get("overlap_steps", 0),
        )
        self._count = count
        self._start = 0
        self.steps = 0

    def train(self, members: list[int], steps: int, without: int = -1) -> None:
        """So many steps of these; one may lose its batches."""
        everyones = {}
        end = self._count - (self._count - self._start) % len(members)
        for place, member in enumerate(members):
            part = slice(self._start + place, end, len(members))
            x, y = (array[part] for array in training.arrays())
            everyones[member] = [
                (x[BATCH * step :][:BATCH], y[BATCH * step :][:BATCH])
                for step in range(steps)
            ]
        everyones.pop(without, None)
        self.ranks.train(everyones)
        self._start = min(self._start + steps * BATCH * len(members), end)
        self.steps += steps

    def end(self) -> None:
        """Of an epoch that several ranks have trained in."""
        self.ranks.meet()
        self._start = 0


def require_figures(
    found: list[Any], of_epochs: list[dict[str, float]], has_drift: bool = True
) -> None:
    """All ranks' logs have the same, and what the meetings of each epoch were."""
    for *_, figures in found:
        assert figures == found[0][2]
        assert ("ring/meeting_drift" in figures) == has_drift
        for tag, values in figures.items():
            expected = [of_epoch[tag] for of_epoch in of_epochs if tag in of_epoch]
            assert not expected or values == pytest.approx(expected, rel=1e-3)


def require_same(found: list[Any], epochs: Epochs) -> None:
    """All ranks have the reference's weights, the same bits."""
    assert len({training.as_bytes(weights) for weights, *_ in found}) == 1
    for weights, steps, _ in found:
        assert steps == epochs.steps
        assert training.largest_difference(weights, epochs.ranks.common) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {**_DILOCO, "inner": "adam", "death": [2, "begin", 6]},
        pytest.param(
            {**_DILOCO, "inner": "adam", "death": [0, "begin", 6]},
            marks=pytest.mark.slow,
            id="the first",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "meeting", 8], "done": 7},
            marks=pytest.mark.slow,
            id="in a meeting",
        ),
        pytest.param(
            {
                **_DILOCO,
                "death": [1, "meeting", 6],
                "done": 5,
                "options": {"fragments": 2},
            },
            marks=pytest.mark.slow,
            id="in a fragment's meeting",
        ),
        pytest.param(
            {**_DILOCO, "death": [0, "meeting", 6], "rest": 0},
            marks=pytest.mark.slow,
            id="in an epoch's last meeting",
        ),
        pytest.param(
            {"inner": "sgd", "outer": "average", "death": [1, "begin", 6]},
            marks=pytest.mark.slow,
            id="average",
        ),
        pytest.param(
            {**_DILOCO, "inner": "accumulation", "death": [1, "begin", 7]}
            | {"done": 6, "rest": 6, "options": {"sync_every": 2}},
            marks=pytest.mark.slow,
            id="accumulation",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 6], "options": {"fragments": 3}},
            marks=pytest.mark.slow,
            id="fragments",
        ),
        pytest.param(
            {**_DILOCO, "death": [2, "begin", 6], "options": {"wire": "int8"}},
            marks=pytest.mark.slow,
            id="int8",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 6], "options": {"wire": "top-k"}},
            marks=pytest.mark.slow,
            id="top-k",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 7]}
            | {"options": {"fragments": 2, "overlap_steps": 2}},
            marks=pytest.mark.slow,
            id="overlap",
        ),
        # Between the two messages, and before the first.
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 7]}
            | {"options": {"fragments": 2, "overlap_steps": 3, "wire": "int8"}},
            marks=pytest.mark.slow,
            id="overlap of int8",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 7], "compile": {"jit_compile": True}}
            | {"options": {"fragments": 2, "overlap_steps": 2, "wire": "top-k"}},
            marks=pytest.mark.slow,
            id="overlap of top-k, jit_compile",
        ),
        pytest.param(
            {
                **_DILOCO,
                "death": [1, "begin", 6],
                "compile": {"steps_per_execution": 3},
            },
            marks=pytest.mark.slow,
            id="steps_per_execution",
        ),
        pytest.param(
            {**_DILOCO, "death": [1, "begin", 6], "compile": {"jit_compile": True}},
            marks=pytest.mark.slow,
            id="jit_compile",
        ),
    ],
)
def test_a_lost_rank_costs_what_it_has_not_met_with(
    ringrun: Ringrun, case: dict[str, Any]
) -> None:
    case = dict(case)
    death, rest = case.pop("death"), case.pop("rest", 5)
    done = case.pop("done", death[2])
    left = [rank for rank in range(3) if rank != death[0]]
    case |= {"count": 12 * done + 8 * rest}
    case["options"] = {"sync_every": 4, **case.get("options", {})}

    found = fit(ringrun, size=3, ends=left, deaths=[death], **case)

    epochs = Epochs(3, **case)
    epochs.train([0, 1, 2], done)
    epochs.ranks.lose(death[0])
    figures = []
    epochs.ranks.take_figures()  # They begin anew with other ranks.
    for steps in (rest, -(-case["count"] // 8)):
        epochs.train(left, steps)
        epochs.end()
        figures.append(epochs.ranks.take_figures())
    require_same(found, epochs)
    wire = case["options"].get("wire", "float32")
    if wire != "int8":  # Its averages are rounded.
        require_figures(found, figures, has_drift=wire != "top-k")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"inner": "adam"},
        {"inner": "sgd", "options": {"fragments": 2, "overlap_steps": 2}},
        {"inner": "sgd", "options": {"wire": "top-k"}},
        {"inner": "sgd", "options": {"wire": "top-k", "overlap_steps": 3}},
    ],
    ids=["adam", "overlap", "top-k", "overlap of top-k"],
)
@pytest.mark.parametrize("joins", [7, 8])
def test_a_replacement_begins_where_the_ranks_have_met(
    ringrun: Ringrun, case: dict[str, Any], joins: int
) -> None:
    case = {**case, "outer": "diloco", "count": 12 * 4 + 8 * (joins - 4) + 12 * 4}
    case |= {"waits_at": joins, "wanted": 3}
    case["options"] = {"sync_every": 4, **case.get("options", {})}

    found = fit(
        ringrun,
        *_REPLACED,
        "3",
        size=3,
        ends=[1, 2, 3],
        deaths=[[0, "begin", 4]],
        **case,
    )

    epochs = Epochs(4, **case)
    epochs.train([0, 1, 2], 4)
    epochs.ranks.lose(0)
    epochs.train([1, 2], joins - 4)
    epochs.ranks.join(3, source=1)
    figures = []
    epochs.ranks.take_figures()
    for steps in (4, -(-case["count"] // 12)):
        epochs.train([1, 2, 3], steps)
        epochs.end()
        figures.append(epochs.ranks.take_figures())
    require_same(found, epochs)
    has_drift = case["options"].get("wire") != "top-k"
    require_figures(found, figures, has_drift=has_drift)


@pytest.mark.slow
def test_one_that_comes_counts_as_those_that_were_alone(ringrun: Ringrun) -> None:
    case = {**_DILOCO, "count": 5 * 4 + 4 * 8, "options": {"sync_every": 4}}

    case |= {"late": [1], "waits_at": 5, "wanted": 2}
    found = fit(ringrun, *_REPLACED, "2", size=1, ends=[0, 1], **case)

    epochs = Epochs(2, **case)
    epochs.train([0], 5)
    epochs.ranks.join(1, source=0)
    epochs.train([0, 1], 4)
    epochs.end()
    epochs.train([0, 1], 7)
    epochs.end()
    require_same(found, epochs)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 5, 6])
def test_a_rank_that_is_left_behind_keeps_what_has_not_met(
    ringrun: Ringrun, step: int
) -> None:
    """It is interrupted alone, when the others have come to the end of a step."""
    fragments = 1 if step == 4 else 2
    options = {"sync_every": 4, "fragments": fragments}
    case = {**_DILOCO, "count": 10 * 12, "options": options}

    found = fit(ringrun, size=3, ends=[0, 1, 2], interrupted=[1, step], **case)

    epochs = Epochs(3, **case)
    epochs.train([0, 1, 2], step - 1)
    before = epochs.ranks.models[1].get_weights()
    # In the fifth no fragment meets.
    epochs.train([0, 1, 2], 1, without=1 if step == 5 else -1)
    if step == 6:
        weights = epochs.ranks.models[1].get_weights()
        for index in FRAGMENTS[2][1]:
            weights[index] = before[index]
        epochs.ranks.models[1].set_weights(weights)
        epochs.ranks.amounts[1, 1] -= BATCH
    epochs.train([0, 1, 2], 10 - step)
    epochs.end()
    epochs.train([0, 1, 2], 10)
    epochs.end()
    require_same(found, epochs)


@pytest.mark.slow
def test_a_backup_has_what_one_rank_has_trained(ringrun: Ringrun) -> None:
    case = {**_DILOCO, "count": 10 * 8, "options": {"sync_every": 4}}
    case["backup_dir"] = str(ringrun.directory / "backup")

    death = [1, "begin", 6]
    fit(ringrun, size=2, ends=[], code=75, min_np=2, deaths=[death], **case)
    found = fit(ringrun, size=2, ends=[0, 1], **case)

    epochs = Epochs(2, **case)
    epochs.train([0, 1], 6)
    epochs.ranks.lose(1)
    epochs.ranks.join(1, source=0)
    epochs.train([0, 1], 4)
    epochs.end()
    epochs.train([0, 1], 10)
    epochs.end()
    require_same(found, epochs)


_HOSTS_APART = """
import keras
import tensorflow as tf
import ring_keras as ring

ring.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(ring.DiLoCo("sgd", sync_every=2, apart="hosts"), "mse")
data = tf.data.Dataset.from_tensor_slices((tf.ones((8, 2)), tf.ones((8, 1))))
model.fit(
    ring.data.shard(data).batch(2), verbose=0, callbacks=[ring.callbacks.Elastic()]
)
"""


@pytest.mark.slow
def test_hosts_that_train_apart_are_refused(ringrun: Ringrun) -> None:
    finished = ringrun.run(_HOSTS_APART, "--min-np", "1", size=1)

    assert finished.returncode == 1
    assert "[RK620]" in finished.stderr.decode()
    assert "does not work with DiLoCo(apart='hosts')" in finished.stderr.decode()
