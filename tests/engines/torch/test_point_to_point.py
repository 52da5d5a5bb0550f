"""What two ranks send each other by the back end ring, and its buffers."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path

import pytest
from support.torch_ranks import begin, ranks

import ring_keras as ring

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines

DTYPES = [torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]
# The last one is more than fits into a slot.
COUNTS = [0, 1, 7, 300_001]


def values(count, dtype, of):
    return ((torch.arange(count) + of) % 50).to(dtype)


def every_pair_worker():
    rank, size = begin()
    for source in range(size):
        for destination in range(size):
            if source == destination:
                continue
            for dtype in DTYPES:
                for count in COUNTS:
                    if rank == source:
                        dist.send(values(count, dtype, rank), destination)
                    elif rank == destination:
                        got = torch.zeros(count, dtype=dtype)
                        assert dist.recv(got, source) == source
                        assert torch.equal(got, values(count, dtype, source))
    # Around a circle all send before anyone receives.
    for round_ in range(5):
        sent = torch.full([1000], rank + 10.0 * round_)
        got = torch.empty(1000)
        works = [
            dist.isend(sent, (rank + 1) % size),
            dist.irecv(got, (rank - 1) % size),
        ]
        for work in works:
            work.wait()
        assert (got == (rank - 1) % size + 10.0 * round_).all()
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_sends_to_every_other(size):
    ranks(every_pair_worker, size, timeout_s=180)


def apart_worker():
    os.environ["RING_KERAS_HOST_NAME"] = f"host{os.environ['RING_KERAS_RANK']}"
    every_pair_worker()


def test_ranks_of_several_hosts():
    ranks(apart_worker, 3, timeout_s=180)


def order_worker():
    rank, size = begin()
    other = 1 - rank
    # By tag, whatever the order of calls; in order within one.
    if rank == 0:
        works = [dist.isend(torch.tensor([n]), 1, tag=n % 2) for n in range(6)]
        for work in works:
            work.wait()
    else:
        got = {
            tag: [torch.zeros(1, dtype=torch.int64) for _ in "abc"] for tag in (1, 0)
        }
        works = [dist.irecv(one, 0, tag=tag) for tag in got for one in got[tag]]
        for work in works:
            work.wait()
        assert {tag: [int(one) for one in ones] for tag, ones in got.items()} == {
            0: [0, 2, 4],
            1: [1, 3, 5],
        }
    # Several at once, of both directions.
    sent = [torch.full([n], float(rank + n)) for n in (1, 5000)]
    got = [torch.empty_like(one) for one in sent]
    works = dist.batch_isend_irecv(
        [
            *(dist.P2POp(dist.irecv, one, other, tag=n) for n, one in enumerate(got)),
            *(dist.P2POp(dist.isend, one, other, tag=n) for n, one in enumerate(sent)),
        ]
    )
    for work in works:
        work.wait()
    assert [float(one[0]) for one in got] == [other + 1.0, other + 5000.0]
    # Beside collectives, and where the memory has gaps.
    grid = torch.arange(12.0).reshape(3, 4) if rank == 0 else torch.zeros(3, 4)
    work = dist.all_reduce(total := torch.ones(100), async_op=True)
    if rank == 0:
        dist.send(grid.T[1::2], 1)
    else:
        dist.recv(grid.T[1::2], 0)
        assert torch.equal(grid[:, 1::2], torch.arange(12.0).reshape(3, 4)[:, 1::2])
        assert not grid[:, ::2].any()
    work.wait()
    assert (total == size).all()
    said = [{"rank": 0}, "x" * 100_000] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(said, 1)
    else:
        dist.recv_object_list(said, 0)
    assert said == [{"rank": 0}, "x" * 100_000]


def test_order_and_tags():
    ranks(order_worker, 2)


def groups_worker():
    """Of overlapping groups, whose places are other than the ranks."""
    rank, size = begin()
    groups = [dist.new_group([1, 3]), dist.new_group([0, 1, 3])]
    for number, group in enumerate(groups):
        if rank == 3:
            dist.send(torch.tensor([number + 5]), 1, group=group)
        if rank == 1:
            dist.recv(got := torch.tensor([0]), 3, group=group)
            assert int(got) == number + 5
    # Each begins with another group.
    if rank in (1, 3):
        got = [torch.tensor([0.0]), torch.tensor([0.0])]
        order = (0, 1) if rank == 1 else (1, 0)
        if rank == 1:
            works = [
                dist.irecv(got[n], group=groups[n], group_src=n + 1) for n in order
            ]
        else:
            works = [
                dist.isend(torch.tensor([float(n)]), group=groups[n], group_dst=n)
                for n in order
            ]
        for work in works:
            work.wait()
        assert rank == 3 or [float(one) for one in got] == [0.0, 1.0]
    dist.barrier()
    if rank == 0:  # Nobody answers it.
        left_over = dist.isend(torch.zeros(1), 2)
    dist.destroy_process_group()
    if rank == 0:
        with pytest.raises(dist.DistBackendError):
            left_over.wait()
    dist.init_process_group("ring", init_method="ring://")
    if rank == 0:
        dist.send(torch.ones(1), 2)
    if rank == 2:
        dist.recv(got := torch.zeros(1), 0)
        assert got.item() == 1
    dist.barrier()
    return size


def test_groups_and_those_made_anew():
    assert ranks(groups_worker, 4) == [4] * 4


def refused_worker():
    rank, size = begin()
    other = 1 - rank
    with pytest.raises(RuntimeError, match="RK302"):
        if rank == 0:
            dist.send(torch.zeros(3), 1)
        else:
            dist.recv(torch.zeros(4), 0)
    # One rank's arguments are wrong, and the other hears why.
    with pytest.raises((ValueError, RuntimeError), match="apart in memory"):
        if rank == 0:
            dist.recv(torch.zeros(1).expand(3), 1)
        else:
            dist.send(torch.zeros(3), 0)
    dist.all_reduce(one := torch.ones(1))
    works = [dist.isend(one, other), dist.irecv(two := torch.zeros(1), other)]
    for work in works:
        work.wait()
    assert two.item() == size


def test_what_does_not_fit_is_told():
    ranks(refused_worker, 2)


def late_worker():
    rank, _ = begin()
    dist.barrier()  # Both are there.
    hurried = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if rank == 0:
        with pytest.raises(RuntimeError, match="timeout of 2 s"):
            dist.send(torch.zeros(1), 1, group=hurried)
    # The group goes on.
    dist.barrier()
    dist.all_reduce(one := torch.ones(1), group=hurried)
    return one.item()


def test_a_time_limit_counts():
    ranks(late_worker, 2)


def later_worker():
    """Rank 0 begins when the other's transfer has ended."""
    rank, _ = begin(timeout=datetime.timedelta(seconds=2))
    if rank == 1:
        with pytest.raises(RuntimeError, match="timeout of 2 s"):
            dist.send(torch.full([4], 7.0), 0)
    ring.allgather_object(None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="RK2"):
            if rank == 0:
                dist.recv(got := torch.zeros(4), 1)
            else:
                dist.send(torch.ones(4), 0)
        if rank == 0:
            assert not got.any()
    ring.allgather_object(None)


def test_a_send_that_has_failed_is_not_received():
    ranks(later_worker, 2)


def begin_gloo():
    import ring_keras.torch  # noqa: F401

    dist.init_process_group("gloo", init_method="ring://")
    return dist.get_rank(), dist.get_world_size()


def beside_gloo_worker():
    rank, _ = begin_gloo()
    # Its number could be mistaken for that of the two ranks.
    ring.add_process_set([0, 1])
    group = dist.new_group([0, 1], backend="ring")
    if rank < 2:
        with pytest.raises(ValueError, match="RK161"):
            if rank == 0:
                dist.send(torch.ones(1), 1, group=group)
            else:
                dist.recv(torch.zeros(1), 0, group=group)
        dist.all_reduce(one := torch.ones(1), group=group)
        assert one.item() == 2
    dist.barrier()


def test_a_group_beside_gloos_says_that_it_sends_nothing():
    ranks(beside_gloo_worker, 3)


def outlived_worker():
    """A group of a job that has ended, whose numbers are others in the next one."""
    rank, _ = begin()
    world = dist.group.WORLD._get_backend(torch.device("cpu"))
    ring.shutdown()
    ring.init()
    with pytest.raises(dist.DistBackendError, match="RK"):
        world.send([torch.ones(1)], 1 - rank, 0)
    dist.destroy_process_group()
    begin_gloo()
    for _ in range(4):
        group = dist.new_group(backend="ring")
        dist.all_reduce(one := torch.ones(1), group=group)
        assert one.item() == 2


def test_a_group_that_has_outlived_its_job_takes_no_number_of_the_next():
    ranks(outlived_worker, 2)


def lost_worker():
    rank, _ = begin()
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="rank 1") as caught:
        dist.recv(torch.zeros(1), 1)
    return str(caught.value)


def test_a_rank_that_dies_is_named():
    survivor, _ = ranks(lost_worker, 2, check=False)
    assert "RK201" in survivor.result


def shared(address):
    """Whether other processes may map the memory there, as Linux says."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < end:
            return line.split()[1].endswith("s")
    return False


def buckets_worker():
    rank, size = begin()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    own = backend.allocate_tensor(1000, dtype=torch.float64, device=torch.device("cpu"))
    assert (own.shape, own.dtype) == ((1000,), torch.float64)
    assert shared(own.data_ptr())
    own.fill_(rank + 1)
    dist.all_reduce(own)
    assert (own == size * (size + 1) / 2).all()
    with pytest.raises(ValueError, match="RK141"):
        backend.allocate_tensor(3, dtype=torch.float32, device=torch.device("meta"))

    return trained(rank, size, "0"), trained(rank, size, "1")


def trained(rank, size, disables):
    """Whether each bucket is shared, and the weights at the end."""
    os.environ["DDP_DISABLE_COMM_MEM"] = disables
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Linear(60, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    seen = []

    def look(_, bucket):
        seen.append(shared(bucket.buffer().data_ptr()))
        work = dist.all_reduce(bucket.buffer().div_(size), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    parallel.register_comm_hook(None, look)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(9 * step + rank))
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
    weights = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    return seen, weights.tolist()


def test_buckets_lie_in_shared_memory():
    found = ranks(buckets_worker, 2)

    assert found[0] == found[1]
    (in_shared, shared_weights), (in_plain, plain_weights) = found[0]
    assert in_shared
    assert all(in_shared)
    assert len(in_plain) == len(in_shared)
    assert not any(in_plain)
    assert shared_weights == plain_weights


def full_worker():
    """The area has 16 GiB, of which nothing is touched here."""
    begin()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    of = {"dtype": torch.uint8, "device": torch.device("cpu")}
    large = backend.allocate_tensor(15 << 30, **of)
    second = backend.allocate_tensor(2 << 30, **of)
    assert shared(large.data_ptr())
    assert not shared(second.data_ptr())
    second[-1] = 3
    assert (second.numel(), int(second[-1])) == (2 << 30, 3)
    del large
    assert shared(backend.allocate_tensor(2 << 30, **of).data_ptr())


def test_buckets_for_which_there_is_no_shared_memory_left():
    ranks(full_worker, 2)
