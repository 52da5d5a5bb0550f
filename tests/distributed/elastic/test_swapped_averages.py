"""What too few ranks save while `SwapEMAWeights` has averages in the model."""

from __future__ import annotations

import pytest
from support.ringrun import Ringrun

# Notes a digest of all that the second epoch's validation begins with. A process dies
# where DEATHS says, when the weights are swapped on the others.
_FIT = """
import hashlib
import keras, numpy as np, tensorflow as tf
import ring_keras as ring

number = rank
ring.init()


def digest():
    values = [*model.weights, *model.optimizer.variables]
    content = b"".join(np.asarray(v.numpy()).tobytes() for v in values)
    return hashlib.sha256(content).hexdigest()


class Looks(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_test_begin(self, logs=None):
        if self.epoch == 1:
            note(f"NAME.{number}", digest())

    def on_test_batch_end(self, batch, logs=None):
        self.die_if_it_is_time("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.die_if_it_is_time("epoch")

    def die_if_it_is_time(self, where):
        if self.epoch == 1 and (number, where) in DEATHS:
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
x = np.random.default_rng(1).random((48, 4), dtype="float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1, momentum=0.5, use_ema=True, ema_momentum=0.9)
model.compile(ring.DistributedOptimizer(optimizer), loss="mse")
model.fit(
    ring.data.shard(dataset, seed=1).batch(4),
    epochs=3,
    verbose=0,
    shuffle=False,
    validation_data=ring.data.shard(dataset, remainder="keep").batch(8),
    callbacks=[
        Looks(),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=SWAP_ON_EPOCH),
        ring.callbacks.Elastic(backup_dir=here / "backup"),
        ring.callbacks.MetricAverage(),
    ],
)
note(f"NAME.{number}.end")
"""


def _run(
    ringrun: Ringrun,
    name: str,
    *options: str,
    size: int,
    deaths: list[tuple[int, str]],
    swap_on_epoch: bool,
    code: int,
) -> None:
    script = _FIT.replace("NAME", name).replace("DEATHS", str(deaths))
    script = script.replace("SWAP_ON_EPOCH", str(swap_on_epoch))
    finished = ringrun.finish(ringrun.start(script, *options, size=size), 240)
    assert finished.returncode == code, finished.stderr.decode()[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "swap_on_epoch"), [("validation", False), ("epoch", True)]
)
def test_a_backup_has_the_weights_that_were_trained(
    ringrun: Ringrun, where: str, swap_on_epoch: bool
) -> None:
    _run(
        ringrun,
        "lost",
        "--min-np",
        "2",
        size=2,
        deaths=[(1, where)],
        swap_on_epoch=swap_on_epoch,
        code=75,
    )
    assert list((ringrun.directory / "backup").glob("step-*12.json"))
    _run(
        ringrun,
        "again",
        "--min-np",
        "1",
        size=1,
        deaths=[],
        swap_on_epoch=swap_on_epoch,
        code=0,
    )

    assert ringrun.noted("again.0") == ringrun.noted("lost.0")
    assert not list((ringrun.directory / "backup").iterdir())


@pytest.mark.slow  # Four processes load TensorFlow.
def test_so_has_that_of_a_rank_which_has_come_in_the_validation(
    ringrun: Ringrun,
) -> None:
    options = ["--min-np", "2", "--max-np", "2", "--reset-limit", "1"]

    _run(
        ringrun,
        "lost",
        *options,
        "--blacklist-cooldown-range",
        "0",
        "0",
        size=2,
        # The second has come for the other one, and is left alone.
        deaths=[(1, "validation"), (0, "epoch")],
        swap_on_epoch=True,
        code=75,
    )
    assert list((ringrun.directory / "backup").glob("step-*12.json"))
    _run(
        ringrun,
        "again",
        "--min-np",
        "1",
        size=1,
        deaths=[],
        swap_on_epoch=True,
        code=0,
    )

    assert ringrun.noted("again.0") == ringrun.noted("lost.0")
