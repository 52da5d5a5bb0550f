"""A loop whose ranks change while gradients wait for an update."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.ringrun import Ringrun

# Each pass of each rank gives a gradient of 1, so the mean of an update is 1, whoever
# has given how many.
_LOOP = """
import json
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras.lifecycle.elastic_launcher import others_wait

case = json.loads(CASE)
number = rank
if number in case["late"]:
    wait_for("begun")
ring.init()
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.layers[0].kernel.assign([[0.0]])
optimizer = ring.DistributedOptimizer(
    keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)
)
optimizer.build(model.trainable_variables)
state = ring.elastic.KerasState(model, optimizer, step=0, sizes=[])


def wait_for_others():
    note("begun")
    deadline = time.monotonic() + 200  # They import TensorFlow first.
    while not others_wait():
        assert time.monotonic() < deadline, "nobody has come"
        time.sleep(0.01)


@ring.elastic.run
def train(state):
    @tf.function
    def update():
        optimizer.apply([tf.ones((1, 1))], model.trainable_variables)

    while state.step < 8:
        if [number, state.step] in case["deaths"]:
            os.kill(os.getpid(), signal.SIGKILL)
        update()
        state.step += 1
        state.sizes = [*state.sizes, ring.size()]
        if state.step == case["waits_at"] and ring.size() == 1:
            wait_for_others()
        state.commit()


train(state)
note(f"end.{number}", json.dumps([state.sizes, float(model.layers[0].kernel[0, 0])]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "ends", "case", "sizes"),
    [
        # In the middle of the first update comes one that has no passes.
        (1, [0, 1], {"waits_at": 2, "late": [1]}, [1] * 2 + [2] * 6),
        # In that of the second one is lost, with its passes.
        (3, [0, 2], {"deaths": [[1, 6]]}, [3] * 7 + [2]),
    ],
    ids=["comes", "lost"],
)
def test_the_mean_is_that_of_the_passes_that_there_are(
    ringrun: Ringrun, size: int, ends: list[int], case: dict[str, Any], sizes: list[int]
) -> None:
    case = {"late": [], "deaths": [], "waits_at": None, **case}
    script = _LOOP.replace("CASE", repr(json.dumps(case)))
    options = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]
    elastic = ["--min-np", "1", *(options if case["late"] else [])]
    job = ringrun.start(script, *elastic, size=size)
    finished = ringrun.finish(job, 240)

    assert finished.returncode == 0, finished.stderr.decode()[-6000:]
    for number in ends:
        assert json.loads(ringrun.noted(f"end.{number}")) == [sizes, -2.0]
