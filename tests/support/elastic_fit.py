"""A script with a `fit` that real losses of ranks interrupt, compared to the bit."""

from __future__ import annotations

import json
from typing import Any

from support.ringrun import Ringrun

__all__ = [
    "ADAM",
    "AVERAGED",
    "DECAY",
    "DIES_AND_IS_REPLACED",
    "FIT",
    "HALF",
    "REPLACED",
    "fit",
]

# Gradients are sums of small integers, so that they do not depend on how many ranks
# share a batch: one process that is given the same global batches makes the same bits.
# A process that dies "inside" of a step takes no part in it, and waits until all others
# wait for its gradients.
FIT = """
import hashlib, json, threading
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras import _native
from ring_keras.callbacks.checkpoint_files import CheckpointFiles
from ring_keras.lifecycle.elastic_launcher import others_wait
from ring_keras.ops.shards import shard_of
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
        self.totals = [
            self.add_weight(shape=(), initializer="zeros")
            for _ in range(case.get("totals", 1))
        ]
        self.calls = self.add_weight(
            shape=(), initializer="zeros", trainable=False, dtype="float32"
        )

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x + sum(self.totals)


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
    # A rank asks for what others will have updated before there are any gradients.
    pending_only = 1 << 62
    wait_until(
        lambda: any(
            one["name"].startswith(AWAITED)
            for one in _native.recent_collectives(pending_only)
        ),
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


def barrier(name="", communicator_id=0, real=_native.barrier):
    # Of a commit after so many steps: who has passed it has committed.
    here_now = [
        what
        for who, step, what in case.get("in_commit", [])
        if name == "elastic/parts/committed" and [who, step] == [number, steps()]
    ]
    if "dies_before" in here_now:
        os.kill(os.getpid(), signal.SIGKILL)
    real(name, communicator_id)
    if "dies_after" in here_now:
        os.kill(os.getpid(), signal.SIGKILL)
    if here_now:
        case["in_commit"] = []
        raise ring.PeerLostError("as if a rank had been lost, here alone")


_native.barrier = barrier
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
    # Of each step: fit, epoch and number of ranks; an earlier job's come first.
    done = case.get("done", [])

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


x = np.eye(COUNT, dtype=np.float32)[: case.get("items")]
y = np.ones((len(x), 1), np.float32)
y[case.get("infinite", [])] = np.inf
dataset = tf.data.Dataset.from_tensor_slices((x, y))
train = ring.data.shard(dataset, remainder=case.get("remainder", "drop"))
train = train.batch(BATCH).prefetch(2)
op = getattr(ring, case.get("op", "Sum"))
shard = case.get("shard", False)
model = new_model(
    lambda optimizer: ring.DistributedOptimizer(optimizer, op=op, shard_state=shard)
)
own = [eval(text) for text in case.get("callbacks", [])]
elastic = eval(case.get("elastic", "ring.callbacks.Elastic(case.get('scale'))"))
if "asks" in case:
    eval(case["asks"])
for Log.fit in range(case.get("fits", 1)):
    callbacks = [Log(), *own, elastic, ring.callbacks.MetricAverage()]
    history = model.fit(train, epochs=EPOCHS, verbose=0, callbacks=callbacks)


def whole(variable):
    shard = shard_of(variable)
    value = np.array(variable)
    if shard is None:
        return value
    owners = [piece.owner for piece in shard.pieces]
    pieces = [ring.broadcast_object(value.reshape(-1), owner) for owner in owners]
    return np.concatenate(pieces).reshape(shard.shape)


def everything(model):
    found = {v.path: v for v in [*model.weights, *model.optimizer.variables]}
    return {path: whole(v) for path, v in found.items()}


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
        count = min(BATCH * size, len(x) - item)
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

REPLACED = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]


def fit(
    ringrun: Ringrun,
    *options: str,
    size: int = 2,
    ends: list[int],
    code: int = 0,
    **case: Any,
) -> tuple[list[dict[str, Any]], str]:
    """What each process that ends well has to say, and what ringrun has said."""
    script = FIT.replace("CASE", repr(json.dumps(case)))
    job = ringrun.start(script, "--min-np", "1", *options, size=size)
    finished = ringrun.finish(job, 240)
    said = finished.stderr.decode()
    assert finished.returncode == code, said[-6000:]
    return [json.loads(ringrun.noted(f"end.{number}")) for number in ends], said


DIES_AND_IS_REPLACED: dict[str, Any] = {
    "deaths": [[0, 4]],
    "waits_in": [0, 1],
    "late": [2],
}
ADAM = "keras.optimizers.Adam({})"
HALF = {
    "policy": "mixed_float16",
    "scaling": {"initial_scale": 8.0, "dynamic_growth_steps": 3},
    # That of one step of each epoch is not finite.
    "infinite": [9],
}
AVERAGED = "use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=3"
DECAY = "keras.optimizers.schedules.ExponentialDecay(0.125, 4, 0.5, True)"
