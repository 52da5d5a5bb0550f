"""A barrier that names who does not come, after which the group goes on."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
from support.torch_ranks import begin, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines

# A rank that comes is given as long; so is one that does not.
SOON = timedelta(seconds=5)
LONG = timedelta(seconds=60)


def meet():
    from ring_keras.torch import monitored_barrier

    rank, size = begin()
    return monitored_barrier, rank, size


def message_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def missing_worker(missing, wait_all_ranks):
    monitored_barrier, rank, size = meet()
    monitored_barrier(timeout=LONG)
    said = ""
    if rank not in missing:
        said = message_of(
            lambda: monitored_barrier(timeout=SOON, wait_all_ranks=wait_all_ranks)
        )
    # The group is as it was.
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == size
    started = time.monotonic()
    late = ""
    if rank in missing:
        late = message_of(lambda: monitored_barrier(timeout=LONG))
    waited = time.monotonic() - started
    for _ in range(3):  # All count alike again.
        monitored_barrier(timeout=LONG)
    return said, late, waited


@pytest.mark.parametrize(
    ("missing", "wait_all_ranks", "named"),
    [
        ([1], False, "Rank 1 failed"),
        ([1, 3], False, "Rank 1 failed"),
        ([1, 3], True, "Ranks 1, 3 failed"),
        ([2], True, "Rank 2 failed"),
    ],
)
def test_who_does_not_come_is_named(missing, wait_all_ranks, named):
    found = ranks(missing_worker, 4, missing, wait_all_ranks, timeout_s=150)

    for rank, (said, late, waited) in enumerate(found):
        if rank in missing:
            assert "RK163" in late
            assert waited < 30, "a rank that comes later waits for nobody"
        elif rank == 0:
            assert said.startswith("[RK163] ")
            assert f"{named} to pass monitoredBarrier in 5000 ms" in said
        else:
            reached = f"Rank {rank} successfully reached monitoredBarrier, but received"
            assert said.startswith(f"[RK163] {reached}")


def first_missing_worker():
    monitored_barrier, rank, _ = meet()
    said = ""
    if rank > 0:
        said = message_of(lambda: monitored_barrier(timeout=SOON))
    dist.barrier()
    late = message_of(lambda: monitored_barrier(timeout=LONG)) if rank == 0 else ""
    monitored_barrier(timeout=LONG)
    return said, late


def test_the_first_rank_may_be_the_one_that_is_missing():
    found = ranks(first_missing_worker, 3, timeout_s=120)

    assert "had not said that all came" in found[0][1]
    for said, _ in found[1:]:
        assert "had not said that all came" in said


def groups_worker():
    """Of members alone, at the same time; and of torch's own kinds of calls."""
    monitored_barrier, rank, _ = meet()
    groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for group in groups:
        for _ in range(2):
            monitored_barrier(group, 60.0)
    said = message_of(lambda: monitored_barrier(groups[0], 0.2)) if rank == 0 else ""
    dist.barrier()
    dist.group.WORLD.monitored_barrier(LONG)
    monitored_barrier()
    # Made anew, it knows nothing of the former one's calls.
    dist.destroy_process_group()
    monitored_barrier = meet()[0]
    monitored_barrier(timeout=LONG)
    zero = ""
    if rank == 0:
        zero = message_of(lambda: monitored_barrier(timeout=timedelta(0)))
    dist.barrier()
    gloo = dist.new_group(backend="gloo")
    monitored_barrier(gloo, LONG)
    return said, zero


def test_groups_and_those_made_anew():
    found = ranks(groups_worker, 3, timeout_s=120)

    assert "Rank 1 failed to pass monitoredBarrier in 200 ms" in found[0][0]
    assert "Rank 0 timed out in monitoredBarrier" in found[0][1]


def killed_worker():
    monitored_barrier, rank, _ = meet()
    monitored_barrier(timeout=LONG)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return message_of(lambda: monitored_barrier(timeout=SOON))


def test_a_rank_that_was_killed_is_named():
    first, _, third = ranks(killed_worker, 3, timeout_s=120, check=False)

    assert "Rank 1 failed to pass monitoredBarrier" in first.result
    assert "Rank 2 successfully reached" in third.result
