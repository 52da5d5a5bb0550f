"""Collectives of torch.distributed by the back end ring, beside their definition."""

from __future__ import annotations

import datetime
import sys
import time

import pytest
from support.torch_ranks import begin, ranks
from support.torch_values import SHAPES, same, values

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines

COMPUTED = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
MOVED = [*COMPUTED, torch.bool, torch.complex64, torch.uint32, torch.float8_e4m3fn]


def reductions_worker():
    rank, size = begin()
    kinds = {
        dist.ReduceOp.SUM: lambda all_: sum(all_[1:], all_[0]),
        dist.ReduceOp.PRODUCT: lambda all_: torch.stack(all_).prod(0),
        dist.ReduceOp.MIN: lambda all_: torch.stack(all_).amin(0),
        dist.ReduceOp.MAX: lambda all_: torch.stack(all_).amax(0),
    }
    for dtype in COMPUTED:
        for shape in SHAPES:
            everyones = [values(shape, dtype, other) for other in range(size)]
            for op, reference in kinds.items():
                expected = reference(everyones).to(dtype)
                got = everyones[rank].clone()
                dist.all_reduce(got, op)
                same(got, expected)
                got = everyones[rank].clone()
                dist.reduce(got, dst=size - 1, op=op)
                same(got, expected if rank == size - 1 else everyones[rank])
                # Each rank's part, by both calls.
                parts = [part + 1 for part in everyones]
                expected = reference([everyones[other] + 1 for other in range(size)])
                one = torch.empty_like(got)
                dist.reduce_scatter(one, [parts[rank].clone() for _ in range(size)], op)
                same(one, expected.to(dtype))
                if shape:
                    dist.reduce_scatter_tensor(one, torch.cat([parts[rank]] * size), op)
                    same(one, expected.to(dtype))
    average = torch.full([5], float(rank))
    dist.all_reduce(average, dist.ReduceOp.AVG)
    same(average, torch.full([5], (size - 1) / 2))
    doubled = torch.ones(3)
    dist.all_reduce(doubled, dist._make_nccl_premul_sum(2.0))
    same(doubled, torch.full([3], 2.0 * size))
    whole = values((7, 3), torch.complex64, rank)
    dist.all_reduce(whole)
    same(whole, sum(values((7, 3), torch.complex64, other) for other in range(size)))
    with pytest.raises(ValueError, match="RK142"):
        dist.reduce_scatter(whole[:1], [whole[:1]] * size, dist.ReduceOp.MAX)
    for op, bits in (
        (dist.ReduceOp.BAND, torch.bitwise_and),
        (dist.ReduceOp.BOR, torch.bitwise_or),
        (dist.ReduceOp.BXOR, torch.bitwise_xor),
    ):
        expected = torch.tensor([12, 7])
        for other in range(1, size):
            expected = bits(expected, torch.tensor([12, 7]) + 3 * other)
        got = torch.tensor([12, 7]) + 3 * rank
        dist.all_reduce(got, op)
        same(got, expected)
    truth = torch.tensor([rank == 0, False, True])
    dist.all_reduce(truth)
    same(truth, torch.tensor([True, False, True]))
    return "tensorflow" in sys.modules


@pytest.mark.parametrize("size", [2, 3, 4])
def test_reductions(size):
    assert ranks(reductions_worker, size) == [False] * size


def moves_worker():
    rank, size = begin()
    for dtype in MOVED:
        for shape in SHAPES:
            everyones = [values(shape, dtype, other) for other in range(size)]
            mine = everyones[rank]
            got = mine.clone()
            dist.broadcast(got, src=1)
            same(got, everyones[1])
            outputs = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(outputs, mine)
            list(map(same, outputs, everyones))
            outputs = [torch.empty_like(mine) for _ in range(size)]
            dist.gather(mine, outputs if rank == 1 else None, dst=1)
            if rank == 1:
                list(map(same, outputs, everyones))
            got = torch.empty_like(mine)
            dist.scatter(got, everyones if rank == 1 else None, src=1)
            same(got, mine)
            outputs = [torch.empty_like(mine) for _ in range(size)]
            dist.all_to_all(outputs, [mine.clone() for _ in range(size)])
            list(map(same, outputs, everyones))
            if shape:
                together = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
                dist.all_gather_into_tensor(together, mine)
                list(map(same, together.split(shape[0] or 1), everyones))
    # As many inputs as ranks, of one shape, so that each could be another one's.
    inputs = [torch.full([2, 3], 10.0 * rank + number) for number in range(size)]
    lists = [[torch.empty(2, 3) for _ in inputs] for _ in range(size)]
    dist.all_gather_coalesced(lists, inputs)
    assert [[float(one.mean()) for one in ones] for ones in lists] == [
        [10.0 * other + number for number in range(size)] for other in range(size)
    ]
    inputs = [torch.full([count], rank) for count in (1, 4)]
    lists = [[torch.empty_like(one) for one in inputs] for _ in range(size)]
    dist.all_gather_coalesced(lists, inputs)
    for other, ones in enumerate(lists):
        assert [one.tolist() for one in ones] == [[other], [other] * 4]
    # To rank n go n rows.
    sent = torch.arange(size).repeat_interleave(torch.arange(size)) + 10 * rank
    got = torch.empty([size * rank], dtype=torch.int64)
    dist.all_to_all_single(got, sent, [rank] * size, list(range(size)))
    expected = [rank + 10 * other for other in range(size) for _ in range(rank)]
    assert got.tolist() == expected
    # What fits may have another shape.
    got = torch.empty(3 * size, dtype=torch.int64)
    dist.all_to_all_single(got, torch.full([size, 3], rank))
    assert got.tolist() == [other for other in range(size) for _ in range(3)]
    # Rows go to the last rank alone, and one has none.
    rows = torch.full([0 if rank == 0 else 2, 5], rank)
    got = torch.empty([2 * (size - 1) if rank == size - 1 else 0, 5], dtype=torch.int64)
    splits = [0] * (size - 1)
    from_each = [0] + [2] * (size - 1) if rank == size - 1 else [0] * size
    dist.all_to_all_single(got, rows, from_each, [*splits, len(rows)])
    assert got.sum().item() == (10 * sum(range(size)) if rank == size - 1 else 0)
    # Not contiguous: values lie elsewhere on each rank.
    grid = torch.zeros([4, 6])
    column = grid.T[1::2] if rank == 0 else grid[:3].new_zeros([3, 4])
    column += rank + 1
    dist.all_reduce(column)
    same(column, torch.full([3, 4], size * (size + 1) / 2))
    if rank == 0:
        assert grid.sum() == column.sum()  # And nothing beside it was touched.
    dist.barrier()
    said = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": other} for other in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_moves(size):
    ranks(moves_worker, size)


def asynchronous_worker():
    rank, size = begin()
    tensors = [torch.full([n], float(rank)) for n in (1, 1000, 300_000)]
    works = [dist.all_reduce(one, async_op=True) for one in tensors]
    future = works[-1].get_future().then(lambda done: done.value()[0] * 2)
    for work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success()
    total = size * (size - 1) / 2
    assert all((one == total).all() for one in tensors)
    assert (future.wait() == 2 * total).all()
    with dist._coalescing_manager():
        for one in tensors:
            dist.all_reduce(one)
    assert all((one == total * size).all() for one in tensors)
    inputs = [torch.full([2], float(rank + n)) for n in range(3)]
    outputs = [torch.empty([2 * size]) for _ in inputs]
    with dist._coalescing_manager(async_ops=True) as together:
        for one, other in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(one, other)
    together.wait()
    for n, output in enumerate(outputs):
        assert output.tolist() == [r + n for r in range(size) for _ in range(2)]


def callback_worker():
    """A callback may compute, wait, and begin others."""
    _, size = begin()

    def again(done):
        one = done.value()[0]
        dist.all_reduce(one, async_op=True).get_future().wait()
        return one.sum()

    for n in (1, 10):
        future = dist.all_reduce(torch.ones(n), async_op=True).get_future()
        assert future.then(again).wait().item() == n * size**2


def modes_worker():
    """What torch itself lets a collective write to."""
    rank, size = begin()
    with torch.inference_mode():
        outputs = [torch.empty(3) for _ in range(size)]
        dist.all_gather(outputs, torch.full([3], float(rank)))
        column = torch.ones(4, 3).T
        work = dist.all_reduce(column, async_op=True)
        work.wait()
    assert [one[0].item() for one in outputs] == list(range(size))
    assert (column == size).all()
    # Of which all elements are one in memory: it can be sent, and not written to.
    expanded = torch.full([1], 5.0).expand(4)
    got = expanded if rank == 0 else torch.zeros(4)
    dist.broadcast(got, src=0)
    assert got.tolist() == [5.0] * 4
    with pytest.raises((ValueError, dist.DistBackendError), match="apart in memory"):
        dist.all_reduce(expanded if rank == 0 else torch.zeros(4))
    weights = torch.ones(4, 3, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(weights.T)
    assert (weights == size).all()


def test_modes_of_torch():
    ranks(modes_worker, 2)


def test_callbacks_may_wait():
    ranks(callback_worker, 2)


def test_what_is_under_way():
    ranks(asynchronous_worker, 2)


def groups_worker():
    """Groups that overlap, one that spans all, and the engine's own process sets."""
    import ring_keras as ring

    rank, size = begin()
    named = {members: dist.new_group(list(members)) for members in [(0, 2), (1, 2)]}
    everyone = dist.new_group()
    process_set = ring.add_process_set([0, 2])
    for _ in range(3):
        for members, group in named.items():
            if rank in members:
                one = torch.tensor([1.0 + rank])
                dist.all_reduce(one, group=group)
                assert one.item() == sum(members) + len(members)
                dist.broadcast(one.fill_(rank), src=members[1], group=group)
                assert one.item() == members[1]
        # Of two groups of the same ranks each rank may begin another first.
        order = (everyone, None) if rank % 2 else (None, everyone)
        numbers = {None: torch.tensor([10.0]), everyone: torch.tensor([1.0])}
        works = [
            dist.all_reduce(numbers[group], group=group, async_op=True)
            for group in order
        ]
        for work in works:
            work.wait()
        assert numbers[everyone].item() == size
        assert numbers[None].item() == 10 * size
    dist.destroy_process_group(everyone)
    again = dist.new_group()
    one = torch.ones(1)
    dist.all_reduce(one, group=again)
    assert one.item() == size
    return process_set.process_set_id


def test_groups():
    assert len(set(ranks(groups_worker, 3))) == 1


def again_worker():
    """A group that is made anew has nothing of the one before."""
    rank, size = begin()
    if rank == 0:  # Nobody answers it.
        left_over = dist.all_reduce(torch.tensor([1000.0]), async_op=True)
    dist.destroy_process_group()
    if rank == 0:
        with pytest.raises(dist.DistBackendError):
            left_over.wait()
    for _ in range(2):
        dist.init_process_group("ring", init_method="ring://")
        half = dist.new_group([0, 1])
        for group in (None, half):
            one = torch.ones(1)
            dist.all_reduce(one, group=group)
            assert one.item() == size
        dist.destroy_process_group()


def test_a_group_is_made_anew():
    ranks(again_worker, 2)


def anew_without_others_worker():
    """Two ranks make a group anew; one of them has been in others since the first."""
    rank, _ = begin()
    for round_ in range(4):
        # Torch calls it as the one before.
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        one = torch.tensor([float(rank + round_)])
        if rank < 2:
            dist.all_reduce(one, group=pair)
            assert one.item() == 1 + 2 * round_
            dist.destroy_process_group(pair)
        for _ in range(round_):
            others = dist.new_group([1, 2], use_local_synchronization=True)
            if rank > 0:
                dist.barrier(others)
                dist.destroy_process_group(others)
    dist.barrier()


def test_a_group_is_made_anew_without_the_other_ranks():
    ranks(anew_without_others_worker, 3, timeout_s=60)


def timeout_worker(how):
    """The other rank comes too late, and both hear of it."""
    first = 60 if how == "shorter than before" else 2
    rank, _ = begin(timeout=datetime.timedelta(seconds=first))
    if first > 2:
        # What is over has a limit that is due later.
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend.set_timeout(datetime.timedelta(seconds=2))
    if rank == 1:
        time.sleep(4)
    with pytest.raises(RuntimeError) as caught:
        if how == "waits":
            dist.all_reduce(torch.ones(1))
        elif how in ("future", "shorter than before"):
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
        else:
            work = dist.barrier(async_op=True)
            work.wait(timeout=datetime.timedelta(seconds=0.5))
    if rank == 0:
        limit = 0.5 if how == "wait(timeout)" else 2
        assert f"timeout of {limit} s" in str(caught.value)


@pytest.mark.parametrize(
    "how", ["waits", "future", "wait(timeout)", "shorter than before"]
)
def test_a_timeout_counts(how):
    ranks(timeout_worker, 2, how)


def marked_worker():
    """Given to the back end itself, past what torch does before."""
    begin()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for marked in (
        torch.ones(2, dtype=torch.complex64).conj(),
        torch._neg_view(torch.ones(2)),
    ):
        with pytest.raises(ValueError, match=r"RK141.*by a mark"):
            backend.broadcast([marked], dist.BroadcastOptions())


def test_memory_that_is_not_the_value_is_refused():
    ranks(marked_worker, 2)
