"""A `fit` that goes on while its launcher is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.lost_launcher import LostLauncher
from support.processes import wait_until
from support.ringrun import Ringrun

# On all ranks row i of `counts` is how often example i was trained on: gradients are
# summed, and all numbers are small integers. So the weights are those of a job that
# has lost nothing, or they are not.
_FIT = """
import json
import keras, numpy as np, tensorflow as tf
import ring_keras as ring

number = rank
COUNT, EPOCHS = 48, 4
ring.init()


class Negative(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return -y_pred


class Notes(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        Notes.steps += 1
        note(f"steps.{number}", Notes.steps)
        time.sleep(0.1)


x = np.eye(COUNT, dtype=np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, np.zeros((COUNT, 1), np.float32)))
model = keras.Sequential(
    [
        keras.Input((COUNT,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
    ]
)
optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
model.compile(optimizer, Negative(reduction="sum"))
note(f"pid.{number}", os.getpid())
model.fit(
    ring.data.shard(dataset, seed=1).batch(2).prefetch(2),
    epochs=EPOCHS,
    verbose=0,
    shuffle=False,
    callbacks=[Notes(), ring.callbacks.Elastic(lambda before, after: 1.0)],
)
(counts,) = model.get_weights()
end = {"trained": sorted(set(counts.ravel().tolist())), "pid": os.getpid()}
note(f"end.{number}", json.dumps(end))
"""


@pytest.fixture
def job(ringrun: Ringrun) -> Iterator[LostLauncher]:
    made = LostLauncher(ringrun)
    yield made
    made.close()


def await_steps(ringrun: Ringrun, least: int) -> None:
    """Until rank 0 has done so many."""
    path = ringrun.directory / "steps.0"
    wait_until(
        lambda: path.exists() and int(path.read_text()) >= least, f"{least} steps", 120
    )


def assert_no_step_was_lost(ringrun: Ringrun, pids: list[int]) -> None:
    for number in (0, 1):
        end = json.loads(ringrun.noted(f"end.{number}"))
        assert end == {"trained": [4.0], "pid": pids[number]}
    # 48 steps, and those that were begun when a launcher was lost.
    assert int(ringrun.noted("steps.0")) <= 48


def test_no_step_is_lost_or_done_twice(ringrun: Ringrun, job: LostLauncher) -> None:
    job.begin(_FIT, "--min-np", "2")
    await_steps(ringrun, 5)
    pids = ringrun.pids("pid.0", "pid.1")

    for steps in (15, 30):
        job.lose()
        job.take_over()
        await_steps(ringrun, steps)

    finished = ringrun.finish(job.process, 120)
    assert finished.returncode == 0, finished.stderr.decode()
    assert_no_step_was_lost(ringrun, pids)


@pytest.mark.slow  # The same, with nobody there.
def test_no_step_is_lost_if_an_agent_takes_over(
    ringrun: Ringrun, job: LostLauncher
) -> None:
    job.begin(_FIT, "--min-np", "2", "--heirs")
    await_steps(ringrun, 5)
    pids = ringrun.pids("pid.0", "pid.1")

    job.lose()

    wait_until(lambda: job.left() == [], "the job has ended", 200)
    assert_no_step_was_lost(ringrun, pids)
