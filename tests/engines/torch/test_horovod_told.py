"""horovod.torch where one rank alone fails: the others hear of it, and all go on."""

from __future__ import annotations

import pytest
from support.torch_ranks import begin_horovod, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines

STEPS = 4


def said_by(call):
    """Its error's type and text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def sparse_worker(where):
    """In step 1 rank 1 has a sparse gradient, in a bucket that others follow or not."""
    hvd = begin_horovod()
    rank = hvd.rank()
    first, unused = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    table = torch.nn.Embedding(4, 2, sparse=True)
    # That of the table is full in backward, unless a parameter is in it that rests.
    groups = [[first], [table.weight]] if where == "backward" else None
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([table.weight, unused, first], 0.0),
        groups=groups or [[first], [table.weight, unused]],
    )
    told, averages = [], []

    def train(step):
        optimizer.zero_grad()
        loss = (10 * step + rank) * first.sum()
        if rank == 1 and step == 1:
            loss = loss + table(torch.tensor([0])).sum()
        loss.backward()
        optimizer.step()
        averages.append(first.grad.item())

    for step in range(STEPS):
        told.append(said_by(lambda step=step: train(step)))
    return told, averages


@pytest.mark.parametrize("where", ["backward", "step"])
def test_all_hear_of_one_that_fails_in_a_step_and_go_on(where):
    found = ranks(sparse_worker, 3, where, timeout_s=60)

    for rank, (told, averages) in enumerate(found):
        assert [one is None for one in told] == [True, False, True, True], told
        kind, text = told[1]
        if rank == 1:
            assert kind == "AbsentError" and "sparse_as_dense" in text
        else:
            assert kind == "RankMismatchError", text
            assert text.startswith("[RK310]") and "sparse_as_dense" in text
            assert "rank 1 cannot take part" in text
        # Each step's own, and no other step's.
        assert averages == [1.0, 21.0, 31.0]


def other_buckets_worker():
    """Rank 1 has a bucket less, and takes two steps."""
    hvd = begin_horovod()
    own = [torch.nn.Parameter(torch.ones(1)) for _ in range(2 - hvd.rank())]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(own, 0.0), groups=[[one] for one in own]
    )

    def train():
        optimizer.zero_grad()
        sum(one.sum() for one in own).backward()
        optimizer.step()

    told = [said_by(train) for _ in range(2)]
    return [one for one in told if one]


def test_ranks_with_other_numbers_of_buckets_are_told():
    for told in ranks(other_buckets_worker, 2, timeout_s=60):
        assert told and told[0][0] == "RankMismatchError", told
        assert told[0][1].startswith("[RK312]"), told


def two_optimizers_worker():
    """One backward for both, in an order of each rank's own; one steps more often."""
    hvd = begin_horovod()
    rank = hvd.rank()
    nets = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.0)) for net in nets
    ]
    found = []
    for step in range(6):
        used = [0, 1] if step % 2 else [1]
        for optimizer in optimizers:
            optimizer.zero_grad()
        # Who has not used a net reduces zeros in step().
        loss = sum(
            nets[number](torch.full((1, 1), float(step))).sum()
            for number in (used if rank else reversed(used))
            if rank or number or step % 4 == 1
        )
        loss.backward()
        for number in used:
            optimizers[number].step()
            found.append(nets[number].weight.grad.item())
    return found


def test_optimizers_of_one_backward_do_not_disturb_each_other():
    for found in ranks(two_optimizers_worker, 2, timeout_s=60):
        assert found == [0.0, 1.0, 1.0, 2.0, 1.5, 3.0, 4.0, 5.0, 5.0]


def refused_calls(hvd, wrong):
    """Calls that are refused where `wrong`, and then the same ones that are not."""
    ones, scalar = torch.ones(2), torch.ones(())
    sparse = torch.ones(2).to_sparse()
    for bad in (True, False) if wrong else (False, False):
        several = [ones, sparse if bad else ones, torch.ones(1, dtype=torch.int32)]
        rows = [ones, scalar if bad else ones, ones]
        yield lambda bad=bad: hvd.allreduce(sparse if bad else ones)
        yield lambda bad=bad: hvd.allreduce_([1.0] if bad else ones.clone())
        yield lambda several=several: hvd.grouped_allreduce(several, name="group")
        yield lambda several=several: hvd.synchronize(
            hvd.grouped_allreduce_async(several, name="other")
        )
        yield lambda bad=bad: hvd.allgather(scalar if bad else ones)
        yield lambda rows=rows: hvd.grouped_allgather(rows, name="rows")
        yield lambda rows=rows: hvd.synchronize(
            hvd.grouped_allgather_async(rows, name="more")
        )
        yield lambda bad=bad: hvd.broadcast(ones, 5 if bad else 0)
        yield lambda bad=bad: hvd.broadcast_(sparse if bad else ones.clone(), 0)
        yield lambda bad=bad: hvd.alltoall(ones, splits=["?"] if bad else [1, 1])
        yield lambda bad=bad: hvd.reducescatter(sparse if bad else ones)
        yield lambda several=several: hvd.synchronize(
            hvd.grouped_reducescatter_async([*several[:2], ones], name="parts")
        )


def refused_worker():
    hvd = begin_horovod()
    return [said_by(call) for call in refused_calls(hvd, hvd.rank() == 1)]


def test_all_hear_of_what_one_refuses():
    first, second = ranks(refused_worker, 2, timeout_s=60)

    assert len(first) == len(second) == 24
    for told, own in zip(first[:12], second[:12], strict=True):
        assert own is not None and own[0] != "RankMismatchError", (told, own)
        assert told[0] == "RankMismatchError", told
        assert "rank 1 cannot take part" in told[1] and own[1] in told[1]
    # The next call of each name meets the others' next.
    assert first[12:] == second[12:] == [None] * 12
