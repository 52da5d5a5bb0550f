"""A rank that dies, or NCCL that fails, is the same error on all, soon."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support import RankOutcome, run_ranks
from support.engine_only import join
from support.gpu_calls import gpu
from support.processes import wait_until
from support.real_gpu import has_gpu, real_gpu_environment
from support.stand_in import Control, stand_in_environment
from support.variants import variants

from ring_keras import _native

REMOTE_ERROR = 6


def assert_survivors_blame(outcomes: list[RankOutcome], victim: int) -> None:
    """All other ranks raised the same PeerLostError, about the victim."""
    assert outcomes[victim].signal == signal.SIGKILL
    survivors = [outcome for outcome in outcomes if outcome.rank != victim]
    for outcome in survivors:
        assert outcome.message.startswith("PeerLostError: "), outcome.describe()
        assert f"rank {victim} (host " in outcome.message, outcome.describe()
        # Long before a collective's own deadline.
        assert not outcome.timed_out, outcome.describe()
    assert len({outcome.message for outcome in survivors}) == 1


def dies_while_others_wait(victim: int) -> None:
    rank, _ = join()
    ones = np.ones(10, np.float32)
    gpu().allreduce([ones], name="connect").results()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    gpu().allreduce([ones], name="grads").operation.wait()


def dies_before_its_device_takes_part(victim: int) -> None:
    rank, _ = join()
    ones = np.ones(1_000_000, np.float32)
    gpu().allreduce([ones], name="connect").results()
    if rank == victim:
        Control().hold(gpu().stream.handle)
    pending = gpu().allreduce([ones], name="grads")
    pending.operation.follow(gpu().stream.handle)
    # All devices have been given it; the victim's never begins.
    _native.barrier("launched")
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    pending.operation.wait()


def dies_in_the_last_step(victim: int) -> None:
    """Nobody waits for the collective: who reads a result, and asks, is told."""
    rank, _ = join()
    ones = np.ones(1000, np.float32)
    gpu().allreduce([ones], name="connect").results()
    if rank == victim:
        Control().hold(gpu().stream.handle)
    pending = gpu().allreduce([ones], name="grads")
    pending.operation.follow(gpu().stream.handle)
    _native.barrier("launched")
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    pending.outputs[0].read()
    _native.barrier("before saving")


def dies_before_connecting(victim: int) -> None:
    rank, _ = join()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    gpu().allreduce([np.ones(10, np.float32)], name="first").operation.wait()


@pytest.mark.parametrize(
    "notices", ["hang", pytest.param("error", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("size", "victim"),
    [
        (3, 0),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "worker",
    variants(
        [dies_while_others_wait, dies_before_connecting],
        [dies_before_its_device_takes_part, dies_in_the_last_step],
    ),
    ids=lambda worker: worker.__name__,
)
def test_a_killed_rank_is_named(worker, size: int, victim: int, notices: str) -> None:
    if notices == "error" and size != 3:
        pytest.skip("enough at one size")
    env = stand_in_environment(STAND_IN_DEAD_PEER=notices)
    outcomes = run_ranks(worker, size, env=env, args=(victim,), check=False)
    assert_survivors_blame(outcomes, victim)


def dies_while_two_sets_wait(victim: int) -> None:
    """The abort of either set's communicator waits for the other's collective."""
    rank, _ = join()
    ones = np.ones(10, np.float32)
    members = [0, victim]
    sets = [_native.add_communicator(members), 0]
    if rank not in members:
        sets = [0]
    for number in sets:
        gpu().allreduce([ones], name="connect", communicator_id=number).results()
    if rank == victim:
        Control().hold(gpu().stream.handle)
    pending = [
        gpu().allreduce([ones], name="grads", communicator_id=number)
        for number in [*sets, *sets[:-1]]
    ]
    for each in pending:
        each.operation.follow(gpu().stream.handle)
    _native.barrier("launched")
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    for each in pending:
        each.operation.wait()


def test_a_killed_rank_ends_what_two_sets_wait_for() -> None:
    env = stand_in_environment(STAND_IN_NCCL_KERNELS="8")
    outcomes = run_ranks(
        dies_while_two_sets_wait, 3, env=env, args=(1,), check=False, timeout_s=60
    )
    assert_survivors_blame(outcomes, 1)


def leaves_and_comes_back() -> None:
    from ring_keras.config import Config

    _, size = join()
    for _ in range(3):
        result = gpu().allreduce([np.ones(10, np.float32)], name="grads").result
        assert (result == size).all()
        _native.shutdown("this part ended")
        _native.init(**Config.from_environment().init_options())


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("stand-in", id="stand-in-2"),
        pytest.param("real", id="real-2", marks=pytest.mark.gpu),
    ],
)
def test_ranks_that_come_back_connect_anew(kind: str) -> None:
    if kind == "real" and not has_gpu():
        pytest.skip("needs an NVIDIA GPU, and nvidia-smi lists none")
    env = stand_in_environment() if kind == "stand-in" else real_gpu_environment(2)
    run_ranks(leaves_and_comes_back, 2, env=env)


def gets_an_asynchronous_error(blamed: int) -> str:
    rank, _ = join()
    ones = np.ones(10, np.float32)
    gpu().allreduce([ones], name="connect").results()
    control = Control()
    if rank == blamed:
        gate = control.hold(gpu().stream.handle)
    pending = gpu().allreduce([ones], name="grads")
    pending.operation.follow(gpu().stream.handle)
    _native.barrier("launched")
    if rank == blamed:
        control.fail_communicators(REMOTE_ERROR)
        control.open(gate)
    for _ in range(1000):  # The error may come after this one is done.
        try:
            pending.operation.wait()
            pending = gpu().allreduce([ones], name="grads")
        except RuntimeError as error:
            return str(error)
    raise AssertionError("no error came")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_an_error_of_ncclls_is_everybodys(size: int) -> None:
    env = stand_in_environment()
    messages = run_ranks(gets_an_asynchronous_error, size, env=env, args=(1,))
    assert all(message == messages[0] for message in messages), messages
    assert "NCCL" in messages[0]


def one_device_is_busy(ended: Path) -> str:
    rank, _ = join()
    ones = np.ones(10, np.float32)
    gpu().allreduce([ones], name="connect").results()
    control = Control()
    gate = control.hold(gpu().stream.handle) if rank == 1 else None
    pending = gpu().allreduce([ones], name="grads")
    if gate is not None:
        # Rank 0's device waits in NCCL for this one's, and NCCL is told to stop.
        # This one's memory is in use until its device is free.
        wait_until(ended.exists, "rank 0 gave up")
        assert not pending.operation.is_done()
        control.open(gate)
    with pytest.raises(RuntimeError) as info:
        pending.operation.wait()
    ended.touch()
    return str(info.value)


@pytest.mark.slow
def test_a_device_that_never_begins_ends_by_the_deadline(tmp_path: Path) -> None:
    env = stand_in_environment(RING_KERAS_COLLECTIVE_TIMEOUT_S="3")
    messages = run_ranks(one_device_is_busy, 2, env=env, args=(tmp_path / "ended",))
    for message in messages:
        assert message.startswith("CollectiveTimeoutError: "), messages
        assert "'grads'" in message, messages


def leaves_nothing() -> tuple[int, int]:
    join()
    for _ in range(3):
        gpu().allreduce([np.ones(10, np.float32)] * 3, name="grads").results()
    control = Control()
    alive = control.communicators()
    _native.shutdown("done")
    return alive, control.communicators()


def test_leaving_the_job_destroys_communicators() -> None:
    for alive, after in run_ranks(leaves_nothing, 3, env=stand_in_environment()):
        assert (alive, after) == (1, 0)
