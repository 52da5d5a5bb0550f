"""What a `fit` computes while real processes are killed, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support.ringrun import Ringrun

# Gradients are sums of small integers, so that they do not depend on how many ranks
# share a batch: one process that is given the same global batches makes the same bits.
# A process that dies "inside" of a step takes no part in it, and waits until all others
# wait for its gradients.
_FIT = """
import hashlib, json, threading
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras import _native
from ring_keras.lifecycle.elastic_launcher import others_wait
from ring_keras.training.distributed_fit import DistributedFit

case = json.loads(CASE)
number = rank
COUNT, EPOCHS = case.get("count", 24), case.get("epochs", 2)
if number in case.get("late", []):
    wait_for("begun")
ring.init()
# A mean of sums waits for the weights of each pass, too.
AWAITED = ("gradients", "train_step/weight")
BATCH = eval(case.get("batch", "2"))
keras.config.set_dtype_policy(case.get("policy", "float32"))


class Adds(keras.layers.Layer):
    def build(self, shape):
        self.total = self.add_weight(shape=(), initializer="zeros")
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, dtype="float32"
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x + self.total


class Negative(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred * y_true


def new_model(wrap):
    model = keras.Sequential(
        [
            keras.Input((COUNT,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            Adds(),
        ]
    )
    optimizer = eval(case.get("optimizer", "keras.optimizers.Adam()"))
    if "scaling" in case:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, **case["scaling"])
    options = {"jit_compile": False, **case.get("compile", {})}
    model.compile(wrap(optimizer), Negative(reduction="sum"), **options)
    return model


def steps():
    # A rank that has no example takes back the one, one that overflows the other.
    padded = case.get("remainder") == "pad"
    return int(model.optimizer.iterations if padded else model.layers[-1].calls)


def tell_that_it_waits(step):
    wait_until(
        lambda: _native.recent_collectives()[-1]["name"].startswith(AWAITED),
        "the step's gradients",
    )
    note(f"inside.{step}.{number}")


def goes_on(fit, batches=None, ask=DistributedFit.goes_on):
    answer = ask(fit, batches)
    step = Log.step = steps()
    dying = [who for who, when in case.get("deaths", []) if when == step]
    if answer and number in dying:
        others = ring.size() - len(dying)
        wait_until(
            lambda: len(list(here.glob(f"inside.{step}.*"))) == others, "the others"
        )
        os.kill(os.getpid(), signal.SIGKILL)
    if answer and dying and ring.size() > 1:
        threading.Thread(target=tell_that_it_waits, args=[step], daemon=True).start()
    return answer


def execution_is_done(fit, end=DistributedFit.execution_is_done):
    end(fit)
    del Log.done[Log.step :]
    if [number, steps()] == case.get("interrupted"):
        case["interrupted"] = None
        raise ring.PeerLostError("as if a rank had been lost, here alone")
    Log.done += [[Log.fit, Log.epoch, ring.size()]] * (steps() - len(Log.done))


DistributedFit.goes_on = goes_on
DistributedFit.execution_is_done = execution_is_done


def checkpoint_begins(checkpoint, end=ring.callbacks.Checkpoint._set_epoch):
    end(checkpoint)
    if number in case.get("dies_where_fit_begins", []):
        os.kill(os.getpid(), signal.SIGKILL)
    ring.barrier(name="fit has begun")


ring.callbacks.Checkpoint._set_epoch = checkpoint_begins


class Log(keras.callbacks.Callback):
    fit = epoch = step = 0
    has_waited = False
    done = []  # Of each step: fit, epoch and number of ranks.

    def on_epoch_begin(self, epoch, logs=None):
        Log.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        is_there = [Log.fit, Log.epoch] == case.get("waits_in")
        if is_there and ring.size() == 1 and not Log.has_waited:
            Log.has_waited = True
            note("begun")
            deadline = time.monotonic() + 200  # It imports TensorFlow first.
            while not others_wait():
                assert time.monotonic() < deadline, "no replacement"
                time.sleep(0.01)

    def on_epoch_end(self, epoch, logs=None):
        if "levels" in case:
            logs["level"] = case["levels"][Log.fit][epoch]


x = np.eye(COUNT, dtype=np.float32)
y = np.ones((COUNT, 1), np.float32)
y[case.get("infinite", [])] = np.inf
dataset = tf.data.Dataset.from_tensor_slices((x, y))
train = ring.data.shard(dataset, remainder=case.get("remainder", "drop"))
train = train.batch(BATCH).prefetch(2)
op = getattr(ring, case.get("op", "Sum"))
model = new_model(lambda optimizer: ring.DistributedOptimizer(optimizer, op=op))
own = [eval(text) for text in case.get("callbacks", [])]
elastic = ring.callbacks.Elastic(case.get("scale"))
if "asks" in case:
    eval(case["asks"])
for Log.fit in range(case.get("fits", 1)):
    callbacks = [Log(), *own, elastic, ring.callbacks.MetricAverage()]
    history = model.fit(train, epochs=EPOCHS, verbose=0, callbacks=callbacks)


def everything(model):
    found = {v.path: v for v in [*model.weights, *model.optimizer.variables]}
    return {path: np.array(v) for path, v in found.items()}


def one_process(done):
    # The variables after the same global batches.
    model = new_model(lambda optimizer: optimizer)
    model.optimizer.build(model.trainable_variables)
    before, item = None, 0
    for *when, size in done:
        if when != before:
            if before and when[0] != before[0]:
                model.optimizer.finalize_variable_values(model.trainable_weights)
            before, item = when, 0
        count = min(BATCH * size, COUNT - item)
        if case.get("remainder", "drop") == "drop":
            count -= count % size
        model.train_on_batch(x[item : item + count], y[item : item + count])
        item += count
    model.optimizer.finalize_variable_values(model.trainable_weights)
    return everything(model)


found = everything(model)
digest = hashlib.sha256(b"".join(v.tobytes() for v in found.values())).hexdigest()
assert ring.allgather_object(digest) == [digest] * ring.size()
done = max(ring.allgather_object(Log.done), key=len)
if ring.rank() == 0 and case.get("compared", True):
    for (path, value), (_, expected) in zip(
        found.items(), one_process(done).items(), strict=True
    ):
        np.testing.assert_array_equal(value, expected, err_msg=path)
states = [
    {
        name: value
        for name in ("best", "best_epoch", "wait", "cooldown_counter", "min_delta")
        if isinstance(value := getattr(callback, name, None), (int, float))
    }
    for callback in own
]
note(
    f"end.{number}",
    json.dumps(
        {
            "sizes": [size for _, _, size in done],
            "states": states,
            "digest": digest,
            "kernel": model.layers[0].kernel.numpy().ravel().tolist(),
            "rate": float(getattr(model.optimizer, "learning_rate", 0.0)),
        }
    ),
)
"""

_REPLACED = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]


def fit(
    ringrun: Ringrun,
    *options: str,
    size: int = 2,
    ends: list[int],
    code: int = 0,
    **case: Any,
) -> tuple[list[dict[str, Any]], str]:
    """What each process that ends well has to say, and what ringrun has said."""
    script = _FIT.replace("CASE", repr(json.dumps(case)))
    job = ringrun.start(script, "--min-np", "1", *options, size=size)
    finished = ringrun.finish(job, 240)
    said = finished.stderr.decode()
    assert finished.returncode == code, said[-6000:]
    return [json.loads(ringrun.noted(f"end.{number}")) for number in ends], said


_DIES_AND_IS_REPLACED: dict[str, Any] = {
    "deaths": [[0, 4]],
    "waits_in": [0, 1],
    "late": [2],
}
_ADAM = "keras.optimizers.Adam({})"
_HALF = {
    "policy": "mixed_float16",
    "scaling": {"initial_scale": 8.0, "dynamic_growth_steps": 3},
    # That of one step of each epoch is not finite.
    "infinite": [9],
}
_AVERAGED = "use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3"
_DECAY = "keras.optimizers.schedules.ExponentialDecay(0.125, 4, 0.5, True)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        _HALF,
        {**_HALF, "optimizer": _ADAM.format("gradient_accumulation_steps=3")},
        {**_HALF, "optimizer": "keras.optimizers.Nadam(0.125)"},
        {"optimizer": _ADAM.format(_AVERAGED)},
        {"optimizer": _ADAM.format(_DECAY)},
        {"optimizer": _ADAM.format("gradient_accumulation_steps=3")},
        {"compile": {"jit_compile": True}},
        {"compile": {"steps_per_execution": 4}},
        {"count": 25},
    ],
    ids=[
        "half",
        "half_accumulation",
        "half_nadam",
        "ema",
        "schedule",
        "accumulation",
        "jit_compile",
        "steps_per_execution",
        "remainder",
    ],
)
def test_one_process_makes_the_same(ringrun: Ringrun, case: dict[str, Any]) -> None:
    case = {**case, **_DIES_AND_IS_REPLACED}

    (first, second), _ = fit(ringrun, *_REPLACED, ends=[1, 2], **case)

    # An epoch of two ranks has 6 steps.
    assert 1 in first["sizes"]
    assert first["sizes"][-6:] == [2] * 6
    assert first["digest"] == second["digest"]


_SEVERAL = (
    "keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap("
    "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4),"
    "{'adds': keras.optimizers.SGD(0.25, gradient_accumulation_steps=4)}))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)",
        pytest.param(
            _SEVERAL,
            marks=pytest.mark.skipif(
                not hasattr(keras.optimizers, "MultiOptimizer"),
                reason="this Keras has none",
            ),
        ),
    ],
    ids=["one", "several"],
)
def test_who_joins_leaves_the_mean_of_the_others(
    ringrun: Ringrun, optimizer: str
) -> None:
    case = {**_DIES_AND_IS_REPLACED, "deaths": [[0, 3]], "op": "Average"}
    case |= {"count": 20, "epochs": 3}

    (first, second), _ = fit(
        ringrun, *_REPLACED, ends=[1, 2], optimizer=optimizer, **case
    )

    # Two of the first ten steps wait for the second epoch, where another rank joins.
    assert first["sizes"] == [1] * 10 + [2] * 10
    assert first["digest"] == second["digest"]


@pytest.mark.slow
def test_an_update_that_was_missed_is_not_added_up_again(ringrun: Ringrun) -> None:
    # An epoch has 5 steps: one waits for the next epoch's first.
    accumulates = _ADAM.format("gradient_accumulation_steps=2")

    fit(ringrun, ends=[0, 1], count=20, optimizer=accumulates, interrupted=[1, 6])


@pytest.mark.slow
def test_what_is_padded_counts_once_an_epoch(ringrun: Ringrun) -> None:
    counts = "keras.optimizers.SGD(1.0)"
    case: dict[str, Any] = {"count": 17, "op": "Average", "optimizer": counts}
    # When 16 are done one is left, for three ranks.
    case |= {"remainder": "pad", "deaths": [[0, 2], [1, 3]], "compared": False}

    (end, _), _ = fit(ringrun, size=4, ends=[2, 3], **case)

    assert end["sizes"] == [4, 4, 3, 2, 2, 2, 2, 2]
    assert np.round(end["kernel"], 5).tolist() == [2.0] * 17


@pytest.mark.slow
def test_callbacks_of_two_fits_agree(ringrun: Ringrun) -> None:
    watching = [
        "keras.callbacks.EarlyStopping('level', 0.1, 9, mode='min')",
        "keras.callbacks.ReduceLROnPlateau("
        "'level', 0.5, 2, mode='min', min_delta=0.1, cooldown=1)",
        "keras.callbacks.ModelCheckpoint("
        "str(here / f'{number}.keras'), 'level', mode='min', save_best_only=True)",
        "ring.callbacks.RootOnly(keras.callbacks.CSVLogger(here / 'log', append=True))",
    ]
    levels = [[4.0, 3.0, 2.0], [6.0, 5.95, 5.95]]
    case: dict[str, Any] = {
        "callbacks": watching,
        "levels": levels,
        "fits": 2,
        "epochs": 3,
    }
    case |= {"deaths": [[0, 4]], "waits_in": [1, 1], "compared": False}

    (first, second), _ = fit(ringrun, *_REPLACED, ends=[1, 2], scale="linear", **case)

    assert first["states"] == second["states"]
    stopping, plateau, checkpoint, _ = first["states"]
    assert (stopping["best"], stopping["wait"]) == (6.0, 2)
    assert plateau["cooldown_counter"] == 1
    assert checkpoint["best"] == 2.0
    assert first["rate"] == second["rate"] == pytest.approx(0.0005)
    # The rank that was the first is lost; in the second fit another one is.
    _, *rows = (ringrun.directory / "log").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["0", "1", "2"]


@pytest.mark.slow
def test_scaling_does_not_change_what_a_ramp_sets(ringrun: Ringrun) -> None:
    case: dict[str, Any] = {
        "optimizer": "keras.optimizers.SGD(0.5, momentum=0.5)",
        "compared": False,
    }
    ramp = "ring.callbacks.LearningRateWarmup(0.5, 8)"
    case |= {"callbacks": [ramp], "deaths": [[0, 4]]}

    digests = {
        fit(ringrun, ends=[1], scale=scale, **case)[0][0]["digest"]
        for scale in (None, "linear")
    }

    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "case"),
    [
        # Up to as many times the rate as there are ranks when it is made.
        ("optimizers", {"optimizer": _ADAM.format("ring.schedules.Warmup(0.125, 4)")}),
        ("data", {"batch": "4 // ring.size()"}),
    ],
)
def test_what_follows_from_the_number_of_ranks_is_refused(
    ringrun: Ringrun, what: str, case: dict[str, Any]
) -> None:
    case = {**case, "waits_in": [0, 0], "late": [1], "compared": False}

    _, said = fit(ringrun, *_REPLACED, size=1, ends=[0], **case)

    assert f"rank 1 has other {what} than those that train already" in said


@pytest.mark.slow
def test_weights_that_differ_are_found_in_an_epoch(ringrun: Ringrun) -> None:
    sets = (
        "keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: "
        "model.optimizer.learning_rate.assign(0.125 + number // 2))"
    )
    # Of five epochs, all but the second have several ranks.
    case: dict[str, Any] = {"callbacks": [sets], "epochs": 5, "deaths": [[0, 6]]}

    _, said = fit(ringrun, *_REPLACED, ends=[], code=1, waits_in=[0, 2], **case)

    assert "after the first epoch with other ranks, variable" in said


@pytest.mark.slow
def test_what_the_others_do_not_answer_is_refused(ringrun: Ringrun) -> None:
    asks = "ring.allreduce(tf.ones(1), name='asks')"
    case: dict[str, Any] = {"asks": asks, "waits_in": [0, 0], "late": [1]}

    _, said = fit(ringrun, *_REPLACED, size=1, ends=[0], **case)

    assert "communicate with them before it enters their fit()" in said


@pytest.mark.slow
def test_the_best_model_outlives_who_has_saved_it(ringrun: Ringrun) -> None:
    best = (
        "ring.callbacks.BestModelCheckpoint("
        "'level', mode='min', filepath=str(here / 'best.keras'))"
    )
    case: dict[str, Any] = {"callbacks": [best], "levels": [[1.0, 2.0]]}

    (end,), _ = fit(ringrun, ends=[1], deaths=[[0, 8]], **case)

    assert end["states"][0]["best"] == 1.0


@pytest.mark.slow
def test_a_rate_is_scaled_once_where_a_rank_is_lost_at_the_beginning(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    optimizer = "keras.optimizers.SGD(0.5, momentum=0.5)"
    case: dict[str, Any] = {"optimizer": optimizer, "compared": False}
    case |= {"callbacks": [f"ring.callbacks.Checkpoint({str(tmp_path)!r})"]}
    fit(ringrun, ends=[0, 1], epochs=1, **case)

    ends, _ = fit(
        ringrun,
        size=3,
        ends=[0, 1],
        scale="linear",
        # When all have restored what two ranks had, and scaled the rate.
        dies_where_fit_begins=[2],
        **case,
    )

    # The script compares the ranks' variables.
    assert [end["rate"] for end in ends] == [0.5, 0.5]


@pytest.mark.slow
def test_a_rate_is_scaled_once_where_a_rank_is_lost_before_all_begin(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    optimizer = "keras.optimizers.SGD(0.5, momentum=0.5)"
    case: dict[str, Any] = {"optimizer": optimizer, "compared": False}
    checkpoint = f"ring.callbacks.Checkpoint({str(tmp_path / 'parts')!r})"
    fit(ringrun, ends=[0, 1], epochs=1, callbacks=[checkpoint], **case)

    # The first rank has restored, and nobody else.
    dies = (
        "keras.callbacks.LambdaCallback(on_train_begin=lambda logs: "
        "number == 2 and os.kill(os.getpid(), signal.SIGKILL))"
    )
    callbacks = [checkpoint, dies]
    ends, _ = fit(
        ringrun, size=3, ends=[0, 1], scale="linear", callbacks=callbacks, **case
    )

    # The script compares the ranks' variables.
    assert [end["rate"] for end in ends] == [0.5, 0.5]


@pytest.mark.slow
def test_an_accumulation_goes_on_after_a_restart(
    ringrun: Ringrun, tmp_path: Path
) -> None:
    # An epoch has 6 steps, so two of them wait for the next one.
    optimizer = "keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)"
    case: dict[str, Any] = {"optimizer": optimizer, "op": "Average", "compared": False}

    def saves(name: str) -> dict[str, Any]:
        return {
            **case,
            "callbacks": [f"ring.callbacks.Checkpoint({str(tmp_path / name)!r})"],
        }

    whole, _ = fit(ringrun, ends=[0, 1], **saves("whole"))
    killed = {**saves("parts"), "deaths": [[0, 11], [1, 11]]}
    script = _FIT.replace("CASE", repr(json.dumps(killed)))
    job = ringrun.start(script, "--min-np", "1", size=2)
    assert ringrun.finish(job, 240).returncode != 0
    resumed, _ = fit(ringrun, ends=[0, 1], **saves("parts"))

    assert [len(end["sizes"]) for end in whole] == [12, 12]
    assert [end["digest"] for end in resumed] == [end["digest"] for end in whole]
