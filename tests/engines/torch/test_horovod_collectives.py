"""horovod.torch's collectives, beside their definition."""

from __future__ import annotations

import sys

import pytest
from support.torch_ranks import begin_horovod, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
SHAPES = [(0,), (), (7, 3), (100_003,)]


def values(shape, dtype, rank):
    """Small whole numbers, so that every order of additions gives the same."""
    count = int(torch.Size(shape).numel())
    return ((torch.arange(count) * (rank + 2) + rank) % 5).to(dtype).reshape(shape)


def same(got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert torch.equal(got, expected), (got, expected)


def allreduce_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    kinds = {
        hvd.Sum: lambda all_: sum(all_[1:], all_[0]),
        hvd.Min: lambda all_: torch.stack(all_).amin(0),
        hvd.Max: lambda all_: torch.stack(all_).amax(0),
        hvd.Product: lambda all_: torch.stack(all_).prod(0),
    }
    for dtype in [*FLOATS, *INTEGERS]:
        for shape in SHAPES:
            everyones = [values(shape, dtype, other) for other in range(size)]
            mine = everyones[rank].clone()
            for op, reference in kinds.items():
                expected = reference(everyones).to(dtype)
                same(hvd.allreduce(mine, op=op), expected)
                same(mine, everyones[rank])
                changed = mine.clone()
                assert hvd.allreduce_(changed, op=op) is changed
                same(changed, expected)
            total = sum(one.double() for one in everyones)
            # Integers toward zero, as Horovod has it.
            mean = total / size if dtype in FLOATS else (total / size).trunc()
            got = hvd.allreduce(mine)
            assert torch.allclose(
                got.double(), mean, rtol=1e-2 if dtype in FLOATS else 0
            )
            same(hvd.allreduce_(mine.clone(), average=True), got)
    negative = torch.tensor([-1 - rank, 7], dtype=torch.int8)
    sums = sum(-1 - other for other in range(size))
    same(hvd.allreduce(negative), torch.tensor([int(sums / size), 7]).to(torch.int8))
    # Not contiguous: what lies between stays.
    whole = torch.arange(24.0).reshape(4, 6) + rank
    hvd.allreduce_(whole[:, ::2], op=hvd.Sum)
    expected = torch.arange(24.0).reshape(4, 6)
    expected[:, ::2] = size * expected[:, ::2] + sum(range(size))
    expected[:, 1::2] += rank
    same(whole, expected)
    turned = (torch.arange(6.0).reshape(2, 3) + rank).t()
    same(
        hvd.allreduce(turned, op=hvd.Sum),
        size * torch.arange(6.0).reshape(2, 3).t() + sum(range(size)),
    )
    scaled = hvd.allreduce(
        torch.ones(4), op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5
    )
    same(scaled, torch.full((4,), 1.5 * size))
    # Several together, of several types, and none.
    group = [torch.ones(3) * rank, torch.ones(2, dtype=torch.int64), torch.zeros(0)]
    first, second, third = hvd.grouped_allreduce(group, op=hvd.Sum)
    same(first, torch.full((3,), float(sum(range(size)))))
    same(second, torch.full((2,), size))
    assert third.shape == (0,) and hvd.grouped_allreduce([]) == []
    hvd.grouped_allreduce_(group, op=hvd.Sum)
    same(group[0], first)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, Halved):
        same(
            hvd.allreduce(torch.ones(5) * 2, compression=compression),
            torch.full((5,), 2.0),
        )
    truth = torch.tensor([rank == 0, True])
    same(hvd.allreduce(truth, op=hvd.Min), torch.tensor([False, True]))
    with pytest.raises(NotImplementedError, match="RK430"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    with pytest.raises(ValueError, match="RK147"):
        hvd.allreduce(torch.ones(2).to_sparse())
    with pytest.raises(TypeError, match="RK147"):
        hvd.allreduce([1.0])
    with pytest.raises(TypeError, match="RK403"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    return "tensorflow" in sys.modules


class Halved:
    """A compressor of one's own."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, "context"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "context"
        return tensor * 2


@pytest.mark.parametrize("size", [2, 3])
def test_allreduce(size):
    assert ranks(allreduce_worker, size) == [False] * size


def moves_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*FLOATS, *INTEGERS, torch.bool]:
        for shape in SHAPES:
            everyones = [values(shape, dtype, other) for other in range(size)]
            mine = everyones[rank].clone()
            same(hvd.broadcast(mine, 1), everyones[1])
            same(mine, everyones[rank])
            assert hvd.broadcast_(mine, 1) is mine
            same(mine, everyones[1])
        rows = [values((other, 2), dtype, other) for other in range(size)]
        same(hvd.allgather(rows[rank]), torch.cat(rows))
        # As many rows for each as its number and this rank's.
        counts = [[one + other for other in range(size)] for one in range(size)]
        sent = [
            values((sum(one), 2), dtype, number) for number, one in enumerate(counts)
        ]
        got, came = hvd.alltoall(sent[rank], torch.tensor(counts[rank]))
        parts = [one.split(counts[number])[rank] for number, one in enumerate(sent)]
        same(got, torch.cat(parts))
        assert came.tolist() == [one[rank] for one in counts]
        even = [values((2 * size, 3), dtype, other) for other in range(size)]
        same(
            hvd.alltoall(even[rank]), torch.cat([one.chunk(size)[rank] for one in even])
        )
    parts = [
        torch.arange(4.0 * size).reshape(2 * size, 2) + other for other in range(size)
    ]
    total = sum(parts)
    same(hvd.reducescatter(parts[rank], op=hvd.Sum), total.chunk(size)[rank])
    assert torch.allclose(
        hvd.reducescatter(parts[rank]), total.chunk(size)[rank] / size
    )
    for got in hvd.grouped_reducescatter([parts[rank], parts[rank]], op=hvd.Sum):
        same(got, total.chunk(size)[rank])
    first, second = hvd.grouped_allgather([torch.ones(1), torch.ones(2)])
    assert first.shape == (size,) and second.shape == (2 * size,)
    column = (torch.arange(6.0).reshape(3, 2) + rank)[:, 0]
    hvd.broadcast_(column, 0)
    same(column, torch.tensor([0.0, 2.0, 4.0]))
    with pytest.raises(ValueError, match="RK147"):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="RK406"):
        hvd.broadcast(torch.ones(1), size)
    # One whose root is elsewhere, and rows that leave some here.
    got, came = hvd.alltoall(torch.arange(size + 3), [1] * size)
    assert got.tolist() == [rank] * size and came.tolist() == [1] * size


@pytest.mark.parametrize("size", [2, 3])
def test_moves(size):
    ranks(moves_worker, size)


def handles_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    tensors = [torch.full((n + 1,), float(rank)) for n in range(6)]
    handles = [
        hvd.allreduce_async_(one, name=f"t{n}", op=hvd.Sum)
        for n, one in enumerate(tensors)
    ]
    handles.append(hvd.allgather_async(torch.full((1,), rank), name="rows"))
    handles.append(hvd.broadcast_async(torch.full((2,), rank), 1, name="sent"))
    handles.append(hvd.alltoall_async(torch.full((size,), rank), name="all"))
    handles.append(hvd.reducescatter_async(torch.ones(size), op=hvd.Sum, name="part"))
    handles.append(
        hvd.grouped_allreduce_async([torch.ones(2), torch.ones(3)], op=hvd.Sum)
    )
    handles.append(hvd.grouped_allgather_async([torch.ones(1), torch.ones(2)]))
    handles.append(hvd.grouped_reducescatter_async([torch.ones(size)], op=hvd.Sum))
    # Each rank asks in an order of its own.
    order = list(range(len(handles)))
    order = order[rank:] + order[:rank]
    results = {place: hvd.synchronize(handles[place]) for place in order}
    total = float(sum(range(size)))
    for place in range(6):
        assert results[place] is tensors[place]
        same(tensors[place], torch.full((place + 1,), total))
    assert results[6].tolist() == results[8].tolist() == list(range(size))
    assert results[7].tolist() == [1, 1]
    assert results[9].tolist() == [float(size)]
    assert [one.tolist() for one in results[10]] == [[size] * 2, [size] * 3]
    assert [len(one) for one in results[11]] == [size, 2 * size]
    assert results[12][0].tolist() == [float(size)]
    for wrong in (handles[0], 12345678):
        with pytest.raises(ValueError, match="RK148"):
            hvd.synchronize(wrong)
    handle = hvd.allreduce_async(torch.ones(3), name="polled")
    while not hvd.poll(handle):
        pass
    same(hvd.synchronize(handle), torch.ones(3))
    # One that differs is an error on all ranks, and the next one goes on.
    handle = hvd.allreduce_async(torch.ones(3 + rank), name="differs")
    with pytest.raises(Exception, match="RK302"):
        hvd.synchronize(handle)
    same(hvd.allreduce(torch.ones(3)), torch.ones(3))
    # Nobody asks for its result, and the job ends.
    forgotten = hvd.allreduce_async(torch.ones(1000, 10), name="forgotten")
    while not hvd.poll(forgotten):
        pass
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(Exception, match="RK101"):
        hvd.synchronize(forgotten)


@pytest.mark.parametrize("size", [2, 3])
def test_handles(size):
    ranks(handles_worker, size)


def gradients_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()

    def gradient_of(function, start):
        x = start.clone().requires_grad_()
        y = function(x)
        weight = torch.arange(1.0, y.numel() + 1).reshape(y.shape) * (rank + 1)
        (y * weight).sum().backward()
        return x.grad

    start = torch.arange(6.0).reshape(3, 2)
    factors = sum(range(1, size + 1))
    upstream = torch.arange(1.0, 7.0).reshape(3, 2)
    same(gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum), start), upstream * factors)
    got = gradient_of(lambda x: hvd.allreduce(x, prescale_factor=2.0), start)
    assert torch.allclose(got, upstream * factors * 2 / size)
    got = gradient_of(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], start)
    same(got, upstream * factors)
    # The loss is the mean of the ranks' losses.
    rows = start[: rank + 1]
    weights = torch.arange(1.0, size * (size + 1) + 1).reshape(-1, 2)
    first = rank * (rank + 1) // 2
    got = gradient_of(hvd.allgather, rows)
    expected = weights[first : first + rank + 1] * factors / size
    assert torch.allclose(got, expected), (got, expected)
    got = gradient_of(lambda x: hvd.broadcast(x, 1), start)
    expected = upstream * factors / size if rank == 1 else torch.zeros_like(upstream)
    assert torch.allclose(got, expected)
    # Each row comes back with the weight that its receiver gave it.
    start = torch.arange(2.0 * size).reshape(size, 2)
    got = gradient_of(hvd.alltoall, start)
    row = torch.tensor([2.0 * rank + 1, 2.0 * rank + 2])
    assert torch.equal(got, torch.stack([row * (to + 1) for to in range(size)]))
    got = gradient_of(lambda x: hvd.alltoall(x, [1] * (size - 1) + [0])[0], start)
    assert torch.equal(got[-1], torch.zeros(2))
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        got = gradient_of(lambda x, op=op: hvd.reducescatter(x, op=op), start)
        expected = torch.stack(
            [torch.tensor([1.0, 2.0]) * (r + 1) for r in range(size)]
        )
        assert torch.allclose(got, expected * factor)
    with pytest.raises(NotImplementedError, match="gradient of an allreduce"):
        gradient_of(lambda x: hvd.allreduce(x, op=hvd.Max), start)
    # What autograd has kept must not change behind its back.
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    hvd.allreduce_(y.detach(), op=hvd.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("size", [2, 3])
def test_gradients(size):
    ranks(gradients_worker, size)


def sets_worker():
    hvd = begin_horovod()
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        same(
            hvd.allreduce(torch.full((2,), float(rank)), process_set=pair),
            torch.ones(2),
        )
        same(
            hvd.broadcast(torch.tensor([rank]), 2, process_set=pair), torch.tensor([2])
        )
        assert hvd.allgather(torch.tensor([rank]), process_set=pair).tolist() == [0, 2]
        assert hvd.allgather_object(rank, process_set=pair) == [0, 2]
        hvd.barrier(process_set=pair)
    same(hvd.allreduce(torch.full((1,), float(rank))), torch.ones(1))
    hvd.remove_process_set(pair)
    # A rank without data lets the others go on.
    for step in range(rank + 1):
        averaged = hvd.allreduce(torch.tensor([float(rank)]), name="step")
        others = [other for other in range(3) if other >= step]
        assert averaged.tolist() == [sum(others) / len(others)]
    return hvd.join()


def test_process_sets_and_join():
    assert ranks(sets_worker, 3) == [2, 2, 2]


def left_worker():
    """Rank 0 has left by join(): what the others get has nothing of it."""
    hvd = begin_horovod()
    rank = hvd.rank()
    if rank != 0:
        weights = torch.arange(8.0).reshape(4, 2)
        x = torch.full((2, 2), float(rank), requires_grad=True)
        (hvd.allgather(x) * weights * rank).sum().backward()
        same(x.grad, (weights * 1.5)[2 * rank - 2 : 2 * rank])
        for splits in (None, [1, 1, 1], [2, 0, 1]):
            x = torch.zeros(3, 1, requires_grad=True)
            received = hvd.alltoall(x, splits)
            received = received if splits is None else received[0]
            (received * 10.0 * rank).sum().backward()
            expected = [0.0, 0.0, 20.0] if splits == [2, 0, 1] else [0.0, 10.0, 20.0]
            assert x.grad.flatten().tolist() == expected, (splits, x.grad)
    return hvd.join() in range(3)


def test_gradients_where_a_rank_has_left():
    assert ranks(left_worker, 3) == [True] * 3


def both_forms_worker():
    """One rank waits, and another one asks later: these are the same collectives."""
    hvd = begin_horovod()
    waits, size = hvd.rank() == 0, hvd.size()
    ones = [torch.ones(1), torch.ones(size)]
    results = []
    for name in (None, "named"):
        for function, options in (
            ("grouped_allgather", {}),
            ("grouped_reducescatter", {"op": hvd.Sum}),
        ):
            tensors = ones if function == "grouped_allgather" else ones[1:]
            call = getattr(hvd, function if waits else f"{function}_async")
            got = call(tensors, name=name, **options)
            got = got if waits else hvd.synchronize(got)
            results.append([one.tolist() for one in got])
    return results


def test_a_call_that_waits_meets_one_that_goes_on():
    rows, parts = [[1.0] * 2, [1.0] * 4], [[2.0]]
    assert ranks(both_forms_worker, 2) == [[rows, parts, rows, parts]] * 2
