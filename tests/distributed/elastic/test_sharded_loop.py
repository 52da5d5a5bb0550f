"""A loop whose ranks divide the optimizer's state goes on when some are killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.ringrun import Ringrun

from ring_keras.optimizers.part_exchange import keepers_of

# Rank 0 gives all gradients, which are small integers, so that the sum is the same for
# any ranks. A process dies before it takes part in a step.
_LOOP = """
import hashlib, json
import keras, numpy as np, tensorflow as tf
import ring_keras as ring
from ring_keras.lifecycle.elastic_launcher import others_wait
from ring_keras.ops.shards import shard_of

case = json.loads(CASE)
number = rank
STEPS = 9
if number in case.get("late", []):
    wait_for("begun")
ring.init()


def make(wrap):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(50), keras.layers.Dense(30)]
    )
    for variable in model.weights:
        variable.assign(np.ones(variable.shape))
    optimizer = wrap(eval(case.get("optimizer", "keras.optimizers.Adam(0.125)")))
    optimizer.build(model.trainable_variables)

    @tf.function
    def update(gradients):
        optimizer.apply(gradients, model.trainable_variables)

    return model, optimizer, update


def gradients(model, step):
    draws = np.random.default_rng(step)
    return [
        tf.constant(draws.integers(-4, 5, v.shape), tf.float32)
        for v in model.trainable_variables
    ]


def wait_for_others():
    note("begun")
    deadline = time.monotonic() + 200  # They import TensorFlow first.
    while not others_wait():
        assert time.monotonic() < deadline, "nobody has come"
        time.sleep(0.01)


model, optimizer, _ = make(
    lambda one: ring.DistributedOptimizer(one, op=ring.Sum, shard_state=True)
)
state = ring.elastic.KerasState(model, optimizer, step=0, sizes=[])


@ring.elastic.run
def train(state):
    @tf.function
    def update(gradients):
        optimizer.apply(gradients, model.trainable_variables)

    while state.step < STEPS:
        if [number, state.step] in case.get("deaths", []):
            os.kill(os.getpid(), signal.SIGKILL)
        share = 1.0 if ring.rank() == 0 else 0.0
        update([share * g for g in gradients(model, state.step)])
        state.step += 1
        state.sizes = [*state.sizes, ring.size()]
        if state.step == case.get("waits_at") and ring.size() == 1:
            wait_for_others()
        if state.step == case.get("asks_at"):
            state.check_host_updates()
        elif state.step % case.get("every", 1) == 0:
            state.commit()


train(state)


def whole(variable):
    shard = shard_of(variable)
    value = np.array(variable)
    if shard is None:
        return value
    owners = [piece.owner for piece in shard.pieces]
    pieces = [ring.broadcast_object(value.reshape(-1), owner) for owner in owners]
    return np.concatenate(pieces).reshape(shard.shape)


found = [whole(v) for v in [*model.weights, *optimizer.variables]]
plain, its_optimizer, update = make(lambda one: one)
for step in range(STEPS):
    update(gradients(plain, step))
for mine, its in zip(found, [*plain.weights, *its_optimizer.variables], strict=True):
    np.testing.assert_array_equal(mine, np.array(its), err_msg=its.path)
has = sum(np.array(v).nbytes for v in optimizer.variables)
note(f"end.{number}", json.dumps({"sizes": state.sizes, "has": has}))
"""


def loop(
    ringrun: Ringrun, *options: str, size: int, ends: list[int], **case: Any
) -> list[dict[str, Any]]:
    """What each process that ends well has to say."""
    script = _LOOP.replace("CASE", repr(json.dumps(case)))
    job = ringrun.start(script, "--min-np", "1", *options, size=size)
    finished = ringrun.finish(job, 240)
    assert finished.returncode == 0, finished.stderr.decode()[-6000:]
    return [json.loads(ringrun.noted(f"end.{number}")) for number in ends]


_REPLACED = ["--max-np", "2", "--blacklist-cooldown-range", "0", "0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "case"),
    [
        (3, {"deaths": [[0, 4]]}),
        # Back to the commit before.
        (3, {"deaths": [[1, 5]], "every": 3}),
        (2, {"deaths": [[1, 2]], "optimizer": "keras.optimizers.SGD(0.5, 0.5)"}),
    ],
    ids=["first", "commits_between", "alone"],
)
def test_a_loop_goes_on(ringrun: Ringrun, size: int, case: dict[str, Any]) -> None:
    lost = [number for number, _ in case["deaths"]]
    ends = [number for number in range(size) if number not in lost]

    found = loop(ringrun, size=size, ends=ends, **case)

    assert found[0]["sizes"][-1] == size - 1


@pytest.mark.slow
@pytest.mark.parametrize("case", [{}, {"asks_at": 3}], ids=["commit", "asks"])
def test_who_comes_takes_a_part(ringrun: Ringrun, case: dict[str, Any]) -> None:
    case = {**case, "waits_at": 3, "late": [1]}

    first, second = loop(ringrun, *_REPLACED, size=1, ends=[0, 1], **case)

    assert first["sizes"] == [1] * 3 + [2] * 6
    assert first["sizes"] == second["sizes"]
    # A vector of 64 elements, of two moments in 4 bytes each.
    assert abs(first["has"] - second["has"]) <= 64 * 2 * 4


def test_copies_are_on_another_host() -> None:
    assert keepers_of(["a"] * 3) == [1, 2, 0]
    assert keepers_of(["a"]) == [0]
    # Any host may be lost: no rank keeps what its own host has.
    hosts = ["a", "a", "a", "b", "c", "c"]
    assert keepers_of(hosts) == [3, 3, 3, 4, 0, 1]
