"""horovod.torch: what ranks take from one another, and statistics of all ranks."""

from __future__ import annotations

import collections

import pytest
from support.torch_ranks import begin_horovod, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines


def taken_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    value = {
        "weights": torch.arange(3.0),
        "half": torch.tensor(1.5, dtype=torch.bfloat16),
        "pair": (1, ("tensor", None)),
        ("a", 1): [torch.ones(2, requires_grad=True), b"x"],
        "ordered": collections.OrderedDict(b=torch.zeros(0, dtype=torch.int64), a=2),
        "counter": collections.Counter([3, 5, 3]),
    }
    got = hvd.broadcast_object(value if rank == 1 else None, root_rank=1)
    assert got["pair"] == value["pair"] and got[("a", 1)][1] == b"x"
    assert list(got["ordered"]) == ["b", "a"]
    assert type(got["ordered"]) is collections.OrderedDict
    assert got["counter"] == collections.Counter([3, 3, 5])
    assert type(got["counter"]) is collections.Counter
    assert got["half"].dtype == torch.bfloat16 and got["half"].item() == 1.5
    assert torch.equal(got["weights"], value["weights"])
    assert got["ordered"]["b"].dtype == torch.int64
    everyones = hvd.allgather_object((rank, torch.full((rank,), rank)))
    assert [one[0] for one in everyones] == list(range(size))
    assert [len(one[1]) for one in everyones] == list(range(size))
    with pytest.raises(TypeError if rank == 0 else Exception, match=r"RK413|RK310"):
        hvd.broadcast_object(object())
    eighths = torch.ones(2).to(torch.float8_e4m3fn)  # NumPy has none of them.
    with pytest.raises(TypeError if rank == 0 else Exception, match=r"Float8|RK310"):
        hvd.broadcast_object([eighths])
    negative = torch.tensor([1 + 2j]).conj().imag  # It negates when it is read.
    assert hvd.broadcast_object(negative).tolist() == [-2.0]

    # What one rank has loaded, and others have none of.
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    kinds = (
        lambda p: torch.optim.Adam(p, 0.1 * (rank + 1), betas=(0.5, 0.9), amsgrad=True),
        lambda p: torch.optim.SGD(p, 0.1 * (rank + 1), momentum=0.5),
    )
    for kind in kinds:
        optimizer = kind(model.parameters())
        if rank == 1:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(5, 4)).square().sum().backward()
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        states = hvd.allgather_object(optimizer.state_dict())
        assert states[0]["state"]
        for one in states[1:]:
            assert same(one, states[0])
        assert optimizer.param_groups[0]["lr"] == 0.2
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    for one in hvd.allgather_object(dict(model.state_dict())):
        assert same(one, dict(model.state_dict()))
    tensors = [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
    hvd.broadcast_parameters(tensors, root_rank=1)
    assert [one.tolist() for one in tensors] == [[1.0] * 2, [1.0] * 3]
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    with pytest.raises(Exception, match="RK317"):
        hvd.broadcast_parameters({f"of rank {rank}": torch.ones(1)}, root_rank=0)
    with pytest.raises(ValueError, match="RK149"):
        hvd.broadcast_parameters(torch.ones(1), root_rank=0)
    with pytest.raises(ValueError, match="RK149"):
        hvd.broadcast_parameters({"a": 1.0}, root_rank=0)
    with pytest.raises(ValueError, match="RK149"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("size", [2, 3])
def test_what_ranks_take(size):
    ranks(taken_worker, size)


CASES = [
    # Shape of all ranks' batch without its rows, and arguments.
    ((4,), {}),
    ((4, 5), {"momentum": None}),
    ((4, 3, 2), {"affine": False, "momentum": 0.3}),
    ((4,), {"track_running_stats": False}),
]
ROWS = [1, 4, 2]


def types_worker():
    hvd = begin_horovod()
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.ASGD([weight], lr=0.0137)
    if hvd.rank() == 0:
        weight.grad = torch.full_like(weight, 0.3)
        for _ in range(3):
            optimizer.step()
    hvd.broadcast_parameters({"weight": weight}, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    state = optimizer.state[weight]
    own = {name: (str(one.dtype), one.tolist()) for name, one in state.items()}
    assert hvd.allgather_object(own) == [own] * hvd.size()
    assert own["eta"][0] == "torch.float32"


def test_state_keeps_its_types():
    ranks(types_worker, 2)


def batch_of(shape, dtype):
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(sum(ROWS), *shape, generator=numbers, dtype=torch.float64)
    return (x * 3 + 2).to(dtype), torch.randn(x.shape, generator=numbers).to(dtype)


def normalized(layer, x, weights):
    """Two batches; the sum of a loss over rows."""
    for _ in range(2):
        x = x.detach().requires_grad_()
        y = layer(x)
        (y * weights).square().sum().backward()
    found = {"y": y.detach(), "x": x.grad, **dict(layer.named_buffers())}
    found |= {name: one.grad for name, one in layer.named_parameters()}
    layer.eval()
    if layer.track_running_stats:  # Else it is of each rank's own batch.
        found["eval"] = layer(x).detach()
    return found


def layer_of(hvd, shape, dtype, options):
    kinds = [torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d]
    kind = hvd.SyncBatchNorm if hvd else kinds[len(shape) - 1]
    layer = kind(4, **options).to(dtype)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(torch.arange(1.0, 5.0))
            layer.bias.copy_(torch.arange(4.0))
    return layer


def norm_worker():
    hvd = begin_horovod()
    rank = hvd.rank()
    results = []
    for dtype in (torch.float64, torch.float32):
        for shape, options in CASES:
            x, weights = (one.split(ROWS)[rank] for one in batch_of(shape, dtype))
            results.append(normalized(layer_of(hvd, shape, dtype, options), x, weights))
    half = layer_of(hvd, (4,), torch.float32, {})(
        torch.ones(3, 4, dtype=torch.bfloat16)
    )
    assert half.dtype == torch.bfloat16
    layer = hvd.SyncBatchNorm(4)
    if rank == 0:  # Nobody communicates, but in training.
        layer.eval()(torch.ones(3, 4))
        hvd.SyncBatchNorm(4, track_running_stats=False).eval()(torch.ones(3, 4))
        layer.train()
    with pytest.raises(ValueError, match="RK147"):
        layer(torch.ones(4))
    with pytest.raises(ValueError, match="RK147"):
        layer(torch.ones(1 if rank == 0 else 0, 4))
    x = torch.randn(2, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()
    # A rank without data, and one with no rows.
    if rank == 2:
        hvd.join()
        return results
    x, weights = batch_of((4,), torch.float64)
    parts = [x[:0], x]
    layer = layer_of(hvd, (4,), torch.float64, {})
    got = layer(parts[rank])
    (got * weights[: len(got)]).sum().backward()
    if rank == 1:
        alone = layer_of(None, (4,), torch.float64, {})
        assert torch.allclose(got, alone(x), rtol=0, atol=1e-12)
    hvd.join()
    return results


def test_batch_normalization():
    """Of all ranks' rows, of which each has another number."""
    everyones = ranks(norm_worker, len(ROWS))
    settings = [(d, c) for d in (torch.float64, torch.float32) for c in CASES]
    for number, (dtype, (shape, options)) in enumerate(settings):
        expected = normalized(
            layer_of(None, shape, dtype, options), *batch_of(shape, dtype)
        )
        atol = 1e-11 if dtype == torch.float64 else 1e-3
        got = [one[number] for one in everyones]
        for name, values in expected.items():
            if name in ("y", "x", "eval"):
                whole = torch.cat([one[name] for one in got])
            elif name in ("weight", "bias"):
                whole = sum(one[name] for one in got)
            else:
                whole = got[0][name]
            assert whole.dtype == values.dtype
            assert torch.allclose(whole, values, rtol=1e-5, atol=atol), (name, options)


def elastic_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    sampler = hvd.elastic.ElasticSampler(range(10), seed=4)
    state = hvd.elastic.TorchState(
        model, optimizer, scheduler=scheduler, sampler=sampler, epoch=rank, note=None
    )
    x = torch.arange(20.0).reshape(10, 2) / 10
    seen = []

    @hvd.elastic.run
    def train(state):
        assert state.epoch == 0 and state.model is model
        for batch, index in enumerate(state.sampler):
            optimizer.zero_grad()
            model(x[index : index + 1]).sum().backward()
            optimizer.step()
            scheduler.step()
            seen.append(index)
            state.sampler.record_batch(batch, 1)
            if batch == 1:
                state.commit()
                break
        kept = {name: one.clone() for name, one in model.state_dict().items()}
        rate = optimizer.param_groups[0]["lr"]
        momentum = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
        state.epoch = 7
        # A step of which another rank has not finished its part.
        model(x).sum().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        scheduler.step()
        state.sampler.record_batch(2, 1)
        model(x).sum().backward()
        state.restore()
        assert state.epoch == 0 and same(dict(model.state_dict()), kept)
        assert optimizer.param_groups[0]["lr"] == rate == 0.05
        buffers = [s["momentum_buffer"] for s in optimizer.state.values()]
        assert all(map(torch.equal, buffers, momentum))
        assert all(one.grad is None for one in model.parameters())
        assert state.sampler.processed_num == 2 * size
        return kept

    kept = train(state)
    for one in hvd.allgather_object(dict(kept)):
        assert same(one, dict(kept))
    everyones = hvd.allgather_object((seen, list(sampler)))
    done = [index for indices, _ in everyones for index in indices]
    left = [index for _, indices in everyones for index in indices]
    assert len(set(done)) == len(done) == 2 * size
    assert set(left) == set(range(10)) - set(done)
    assert len({len(indices) for _, indices in everyones}) == 1
    first = list(sampler)
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and len(sampler) == -(-10 // size)
    assert list(sampler) != first
    with pytest.raises(ValueError, match="of its own"):
        hvd.elastic.TorchState(commit=model)


@pytest.mark.parametrize("size", [2, 3])
def test_elastic_state(size):
    ranks(elastic_worker, size)
