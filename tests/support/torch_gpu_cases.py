"""Collectives of torch.distributed on tensors of GPUs, beside their definition.

They run on the stand-in, whose torch has few operations for such a device, and on real
GPUs.
"""

from __future__ import annotations

import pytest

from support.torch_gpu import begin_on_gpu
from support.torch_values import SHAPES, same, values


def check_reductions() -> None:
    """Those of `all_reduce`, `reduce` and `reduce_scatter`."""
    import torch
    import torch.distributed as dist

    rank, size, device = begin_on_gpu()
    integers = (torch.uint8, torch.int8, torch.int32, torch.int64)
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    kinds = {
        dist.ReduceOp.SUM: lambda all_: sum(all_[1:], all_[0]),
        dist.ReduceOp.PRODUCT: lambda all_: torch.stack(all_).prod(0),
        dist.ReduceOp.MIN: lambda all_: torch.stack(all_).amin(0),
        dist.ReduceOp.MAX: lambda all_: torch.stack(all_).amax(0),
    }
    for dtype in integers + floats:
        for shape in SHAPES if dtype is torch.float32 else SHAPES[:3]:
            everyones = [values(shape, dtype, other) for other in range(size)]
            mine = everyones[rank].to(device)
            for op, reference in kinds.items():
                expected = reference(everyones).to(dtype)
                got = mine.clone()
                dist.all_reduce(got, op)
                same(got, expected)
                got = mine.clone()
                dist.reduce(got, dst=size - 1, op=op)
                same(got, expected if rank == size - 1 else everyones[rank])
                # Each rank's part is like the others', by both calls.
                one = torch.empty_like(mine)
                dist.reduce_scatter(one, [mine.clone() for _ in range(size)], op)
                same(one, expected)
                if shape:
                    one = torch.empty_like(mine)
                    together = torch.cat([everyones[rank]] * size).to(device)
                    dist.reduce_scatter_tensor(one, together, op)
                    same(one, expected)
    check_other_reductions(rank, size, device)


def check_other_reductions(rank: int, size: int, device: object) -> None:
    """Averages, factors, bits, and what is not contiguous or has other types."""
    import torch
    import torch.distributed as dist

    average = torch.full([5], float(rank)).to(device)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    same(average, torch.full([5], (size - 1) / 2))
    doubled = torch.ones(3).to(device)
    dist.all_reduce(doubled, dist._make_nccl_premul_sum(2.0))
    same(doubled, torch.full([3], 2.0 * size))
    whole = values((7, 3), torch.complex64, rank).to(device)
    dist.all_reduce(whole)
    everyones = [values((7, 3), torch.complex64, other) for other in range(size)]
    same(whole, sum(everyones[1:], everyones[0]))
    for op, bits in (
        (dist.ReduceOp.BAND, torch.bitwise_and),
        (dist.ReduceOp.BOR, torch.bitwise_or),
        (dist.ReduceOp.BXOR, torch.bitwise_xor),
    ):
        expected = torch.tensor([12, 7])
        for other in range(1, size):
            expected = bits(expected, torch.tensor([12, 7]) + 3 * other)
        got = (torch.tensor([12, 7]) + 3 * rank).to(device)
        dist.all_reduce(got, op)
        same(got, expected)
    truth = torch.tensor([rank == 0, False, True]).to(device)
    dist.all_reduce(truth)
    same(truth, torch.tensor([True, False, True]))
    grid = torch.zeros([4, 6]).to(device)
    column = grid.T[1::2]
    column.copy_(torch.full([3, 4], rank + 1.0))
    dist.all_reduce(column)
    same(column, torch.full([3, 4], size * (size + 1) / 2))
    # And nothing beside it was touched.
    assert float(grid.cpu().sum()) == 12 * size * (size + 1) / 2
    tensors = [torch.full([n], float(rank)).to(device) for n in (1, 1000, 0)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        same(tensor, torch.full(tensor.shape, size * (size - 1) / 2))
    with pytest.raises((ValueError, dist.DistBackendError), match="does not compute"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16).to(device))


def check_moves() -> None:
    """What moves values, and computes nothing."""
    import torch
    import torch.distributed as dist

    rank, size, device = begin_on_gpu()
    for dtype in (torch.float32, torch.int64, torch.int16, torch.bool, torch.complex64):
        for shape in SHAPES if dtype is torch.float32 else SHAPES[:3]:
            everyones = [values(shape, dtype, other) for other in range(size)]
            mine = everyones[rank].to(device)
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
            theirs = [one.to(device) for one in everyones]
            dist.scatter(got, theirs if rank == 1 else None, src=1)
            same(got, everyones[rank])
            outputs = [torch.empty_like(mine) for _ in range(size)]
            dist.all_to_all(outputs, [mine.clone() for _ in range(size)])
            list(map(same, outputs, everyones))
            if shape:
                together = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
                together = together.to(device)
                dist.all_gather_into_tensor(together, mine)
                same(together, torch.cat(everyones))
    # As many inputs as ranks, of one shape, so that each could be another one's.
    inputs = [torch.full([2, 3], 10.0 * rank + n).to(device) for n in range(size)]
    lists = [[torch.empty_like(inputs[0]) for _ in inputs] for _ in range(size)]
    dist.all_gather_coalesced(lists, inputs)
    for other, ones in enumerate(lists):
        for n, one in enumerate(ones):
            same(one, torch.full([2, 3], 10.0 * other + n))
    # To rank n go n rows.
    sent = torch.arange(size).repeat_interleave(torch.arange(size)) + 10 * rank
    got = torch.empty([size * rank], dtype=torch.int64).to(device)
    dist.all_to_all_single(got, sent.to(device), [rank] * size, list(range(size)))
    expected = [rank + 10 * other for other in range(size) for _ in range(rank)]
    assert got.cpu().tolist() == expected
    # A group has both kinds of memory, and what is on neither.
    host = torch.ones(3)
    dist.all_reduce(host)
    same(host, torch.full([3], float(size)))
    dist.barrier()
    said = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": other} for other in range(size)]
    half = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.ones(3).to(device)
        dist.all_reduce(tensor, group=half)
        same(tensor, torch.full([3], 2.0))


def check_refusals() -> None:
    """What one rank does wrong is the same error on all, and the group goes on."""
    import torch
    import torch.distributed as dist

    rank, size, device = begin_on_gpu()
    errors = (ValueError, RuntimeError)

    def ones() -> torch.Tensor:
        return torch.ones(4).to(device)

    def all_is_well() -> None:
        tensor = ones()
        dist.all_reduce(tensor)
        same(tensor, torch.full([4], float(size)))

    all_is_well()
    with pytest.raises(errors, match="on one device"):
        outputs = [ones() for _ in range(size)]
        if rank == 0:
            outputs[1] = torch.ones(4)
        dist.all_gather(outputs, ones())
    all_is_well()
    with pytest.raises(errors, match="GPU"):
        dist.all_reduce(ones() if rank == 0 else torch.ones(4))
    all_is_well()
    with pytest.raises(errors, match="RK302"):
        dist.all_reduce(ones()[: 3 + rank])
    all_is_well()
    with pytest.raises(errors, match="RK670"):
        if rank == 0:
            dist.send(ones(), 1)
        elif rank == 1:
            dist.recv(ones(), 0)
        else:
            raise ValueError("RK670 is of two ranks")
    # Only who expects something else hears of that.
    rows = torch.arange(size).repeat_interleave(2).to(device)
    got = torch.empty([2 * size + (rank == 0)], dtype=torch.int64).to(device)
    from_each = [2] * (size - 1) + [2 + (rank == 0)]
    if rank == 0:
        with pytest.raises(errors, match="RK145"):
            dist.all_to_all_single(got, rows, from_each, [2] * size)
    else:
        dist.all_to_all_single(got, rows, from_each, [2] * size)
        same(got, torch.full([2 * size], rank))
    all_is_well()
