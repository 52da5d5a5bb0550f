"""What a rank receives from whichever rank sends first, by the back end ring."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import time

import pytest
from support.torch_ranks import begin, ranks

import ring_keras as ring

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines

ROUNDS = 30
# The last one is more than fits into a slot.
COUNTS = [1, 1000, 300_001]


def gathering_worker():
    """One rank hears from all others, in whatever order they come."""
    rank, size = begin()
    for turn in range(ROUNDS):
        receiver = turn % size
        for tag, count in enumerate(COUNTS):
            if rank != receiver:
                sent = torch.full([count], 10.0 * turn + rank)
                dist.send(sent, receiver, tag=tag)
                continue
            came = []
            for _ in range(size - 1):
                got = torch.zeros(count)
                came.append(dist.recv(got, tag=tag))
                assert (got == 10 * turn + came[-1]).all()
            assert sorted(came) == [one for one in range(size) if one != rank]
    dist.barrier()


@pytest.mark.parametrize("size", [2, 4])
def test_one_hears_from_all(size):
    ranks(gathering_worker, size, timeout_s=180)


def apart_worker():
    os.environ["RING_KERAS_HOST_NAME"] = f"host{os.environ['RING_KERAS_RANK']}"
    gathering_worker()


def test_ranks_of_several_hosts():
    ranks(apart_worker, 3, timeout_s=180)


def order_worker():
    """Beside receives that name their rank, other tags, and other groups."""
    rank, size = begin()
    group = dist.new_group([0, 2])
    if rank == 0:
        # Nobody has sent yet, and each gets its own, in the order of the calls.
        got = [torch.zeros(1) for _ in range(4)]
        works = [dist.irecv(one, tag=7) for one in got[:2]]
        works.append(dist.irecv(got[2], tag=8))
        works.append(dist.irecv(got[3], group=group))
        assert not any(work.is_completed() for work in works)
        ring.allgather_object("they may send")
        for work in works:
            work.wait()
        assert sorted(float(one) for one in got[:2]) == [1, 2]
        assert [float(one) for one in got[2:]] == [80, 200]
        assert works[2]._source_rank() == 1
        assert works[3]._source_rank() == 1  # Its place in the group.
        assert sorted(work._source_rank() for work in works[:2]) == [1, 2]
        # What one rank sends in a row arrives in a row, whoever asks for it.
        row = torch.zeros(1)
        came = []
        for turn in range(9):
            source = dist.recv(row) if turn % 3 else dist.recv(row, 1)
            assert source == 1
            came.append(float(row))
        assert came == [float(n) for n in range(9)]
        works = [dist.irecv(torch.zeros(1)), dist.irecv(torch.zeros(1))]
        futures = [work.get_future() for work in works]
        dist.barrier()
        assert sorted(float(one.wait()[0]) for one in futures) == [3, 4]
    else:
        ring.allgather_object("after that")
        dist.send(torch.tensor([float(rank)]), 0, tag=7)
        if rank == 1:
            dist.send(torch.tensor([80.0]), 0, tag=8)
            for turn in range(9):
                dist.send(torch.tensor([float(turn)]), 0)
        else:
            dist.send(torch.tensor([200.0]), 0, group=group)
        dist.barrier()
        dist.send(torch.tensor([rank + 2.0]), 0)
    dist.barrier()
    return size


def test_beside_others():
    ranks(order_worker, 3)


def early_worker():
    """Each receives from any before it sends, and sends before it waits."""
    rank, size = begin()
    for turn in range(20):
        got = torch.zeros(1)
        work = dist.irecv(got)
        dist.send(torch.tensor([100.0 * turn + rank]), (rank + 1) % size)
        work.wait()
        assert work._source_rank() == (rank - 1) % size
        assert float(got) == 100 * turn + (rank - 1) % size
        dist.barrier()


def test_around_a_circle():
    ranks(early_worker, 3)


def failing_worker():
    rank, _ = begin(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"RK160.*timeout of 2 s"):
            dist.recv(torch.zeros(1))
        ring.allgather_object(None)
        # Another shape is told to both, as of a rank that is named.
        with pytest.raises(RuntimeError, match="RK302"):
            dist.recv(torch.zeros(3))
    else:
        ring.allgather_object(None)
        with pytest.raises(RuntimeError, match="RK302"):
            dist.send(torch.zeros(4), 0)
    # What is sent later arrives: nobody takes it for the one that waited.
    if rank == 0:
        got = torch.zeros(1)
        assert dist.recv(got) == 1
        assert got.item() == 5
        pending = dist.irecv(torch.zeros(1))
    else:
        dist.send(torch.tensor([5.0]), 0)
    dist.destroy_process_group()
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="group ended"):
            pending.wait()
        assert not pending.is_success()
        assert "group ended" in str(pending.exception())
    return True


def test_what_fails_is_told():
    assert ranks(failing_worker, 2) == [True, True]


def lost_worker():
    rank, _ = begin()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="rank 1") as caught:
        dist.recv(torch.zeros(1))
    return str(caught.value)


def test_a_rank_that_dies_is_named():
    survivor, _ = ranks(lost_worker, 2, check=False)
    assert "RK201" in survivor.result


def left_worker():
    rank, _ = begin()
    dist.barrier()
    if rank == 1:
        return None
    if rank == 2:  # Another one may still send, and does.
        dist.send(torch.tensor([2.0]), 0)
        return None
    got = torch.zeros(1)
    assert dist.recv(got) == 2
    with pytest.raises(RuntimeError, match="RK202") as caught:
        dist.recv(got)
    return str(caught.value)


def test_nobody_waits_for_those_that_have_left():
    first, *_ = ranks(left_worker, 3)
    assert "waits for any to send" in first


def broken_worker():
    """What ended between two ranks ends nothing with a third one."""
    rank, _ = begin()
    hurried = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        with pytest.raises(RuntimeError, match="timeout of 2 s"):
            dist.recv(torch.zeros(1), 1, group=hurried)
    dist.barrier()
    if rank == 2:
        dist.send(torch.tensor([2.0]), 0)
    if rank == 0:
        got = torch.zeros(1)
        assert dist.recv(got) == 2
        assert got.item() == 2
    dist.barrier()
    return True


def test_a_broken_pair_keeps_nobody_else_from_sending():
    assert ranks(broken_worker, 3) == [True] * 3


def interrupted_worker():
    rank, _ = begin()
    if rank == 0:
        threading.Thread(
            target=lambda: (time.sleep(0.5), os.kill(os.getpid(), signal.SIGINT)),
            daemon=True,
        ).start()
        with pytest.raises(KeyboardInterrupt):
            dist.recv(torch.zeros(1))
    ring.allgather_object(None)
    # It was nobody's: the group goes on.
    dist.barrier()
    return True


def test_ctrl_c_ends_the_wait():
    assert ranks(interrupted_worker, 2) == [True, True]
