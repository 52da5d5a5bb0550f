"""horovod.torch's DistributedOptimizer beside one process on the global batch."""

from __future__ import annotations

import gc
import time
import warnings

import pytest
from support.torch_ranks import begin_horovod, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines

BATCH = 12  # Of all ranks.
STEPS = 6

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
}


def model_of(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).double()


def data_of(step):
    numbers = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, 5, generator=numbers, dtype=torch.float64)
    return x, x.square().sum(1, keepdim=True)


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x), y)


def weights_of(model):
    return [one.detach().clone() for one in model.parameters()]


def alone(kind, *, passes=1, clip=None):
    """One process, whose batches are those of all ranks."""
    model = model_of()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            loss_of(model, *data_of(step * passes + number)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return weights_of(model)


def assert_close(got, expected, atol=1e-12):
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=atol), (one - other).abs().max()


SETTINGS = [
    ("sgd", {}),
    ("adam", {"clip": 0.5}),
    ("sgd", {"passes": 2, "gradient_predivide_factor": 2.0}),
    ("adam", {"num_groups": 3}),
    ("sgd", {"grouped": True, "clip": 1.0}),
]


def training_worker():
    hvd = begin_horovod()
    return [trained(hvd, kind, dict(options)) for kind, options in SETTINGS]


def trained(hvd, kind, options):
    rank, size = hvd.rank(), hvd.size()
    passes, clip = options.pop("passes", 1), options.pop("clip", None)
    model = model_of(seed=rank)
    if options.pop("grouped", False):
        parameters = list(model.parameters())
        options["groups"] = [parameters[:1], [parameters[3], parameters[2]]]
    inner = OPTIMIZERS[kind](model.parameters())
    optimizer = hvd.DistributedOptimizer(
        inner,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    assert isinstance(
        optimizer, {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind]
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            x, y = data_of(step * passes + number)
            loss_of(model, x[rank::size], y[rank::size]).backward()
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return weights_of(model)


@pytest.mark.parametrize("size", [2, 3])
def test_training(size):
    results = ranks(training_worker, size)
    for number, (kind, options) in enumerate(SETTINGS):
        expected = alone(
            kind, passes=options.get("passes", 1), clip=options.get("clip")
        )
        for one in results:
            assert_close(one[number], expected)
            # All ranks to the bit.
            assert_close(one[number], results[0][number], atol=0)


def compressed_worker():
    hvd = begin_horovod()
    return {name: averaged(hvd, name) for name in ("fp16", "own")}


def averaged(hvd, name):
    rank, size = hvd.rank(), hvd.size()

    class Rounded(hvd.Compression.bf16):
        """A user's own, which may write to what it gets."""

        @classmethod
        def compress(cls, tensor):
            return super().compress(tensor.mul_(2))

        @classmethod
        def decompress(cls, tensor, ctx):
            return super().decompress(tensor, ctx) / 2

    compression = Rounded if name == "own" else getattr(hvd.Compression, name)
    model = model_of().float()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), compression=compression
    )
    x, y = data_of(0)
    loss_of(model, x[rank::size].float(), y[rank::size].float()).backward()
    optimizer.synchronize()
    return [one.grad for one in model.parameters()]


def test_compression():
    model = model_of().float()
    x, y = data_of(0)
    loss_of(model, x.float(), y.float()).backward()
    for got in ranks(compressed_worker, 2):
        for place, parameter in enumerate(model.parameters()):
            expected = parameter.grad
            scale = float(expected.abs().max())
            # Within a host nothing is rounded but by a user's own class.
            assert float((got["fp16"][place] - expected).abs().max()) < 1e-6 * scale
            rounded = float((got["own"][place] - expected).abs().max())
            assert 0 < rounded < 0.02 * scale


def misuse_worker():
    hvd = begin_horovod()
    model = model_of()
    misuse(hvd, model)
    # An optimizer that is gone leaves nothing behind.
    gc.collect()
    other = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):
        loss_of(model, *data_of(0)).backward()
        other.step()
        other.zero_grad()


def misuse(hvd, model):
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    hvd.DistributedOptimizer(optimizer, model.named_parameters())
    x, y = data_of(0)

    def backward():
        loss_of(model, x, y).backward()

    def over():
        optimizer.synchronize()
        optimizer.zero_grad()

    # Horovod's errors are AssertionErrors.
    backward()
    with pytest.raises(AssertionError, match=r"RK146.*more than 1 times"):
        backward()
    with pytest.raises(AssertionError, match=r"RK146.*was changed"):
        over()
    optimizer.zero_grad()
    backward()
    with pytest.raises(AssertionError, match=r"RK146.*zero_grad"):
        optimizer.zero_grad()
    over()
    for change in (
        lambda: model.zero_grad(),
        lambda: model[0].weight.grad.mul_(2),
    ):
        backward()
        change()
        with pytest.raises(
            AssertionError, match=r"RK146.*of 2.bias|RK146.*of 0.weight"
        ):
            optimizer.step()
        optimizer.zero_grad()
    backward()
    with (
        pytest.raises(AssertionError, match=r"RK146.*skip_synchronize"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step()
    over()
    backward()
    with pytest.raises(AssertionError, match=r"RK146.*set_backward"):
        optimizer.set_backward_passes_per_step(2)
    over()
    # A scaler writes so that autograd does not see it.
    scaler = torch.amp.GradScaler("cpu")
    for scaling in (scaler.step, scaler.unscale_):
        scaler.scale(loss_of(model, x, y)).backward()
        with pytest.raises(AssertionError, match=r"RK146.*GradScaler"):
            scaling(optimizer)
        over()
    scaler.scale(loss_of(model, x, y)).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    scaled = [one.grad.clone() for one in model.parameters()]
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    assert_close([one.grad for one in model.parameters()], scaled, atol=0)
    optimizer.zero_grad()
    # A second average would be another number, for a sum at least.
    backward()
    optimizer.synchronize()
    before = [one.grad.clone() for one in model.parameters()]
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    assert_close([one.grad for one in model.parameters()], before, atol=0)
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    backward()
    with pytest.raises(AssertionError, match=r"RK146"):
        optimizer.zero_grad()
    backward()
    optimizer.step()
    optimizer.zero_grad()
    fresh = lambda: torch.optim.SGD(model.parameters(), 0.1)  # noqa: E731
    for arguments, words in (
        ({"named_parameters": [("a", model[0].weight)]}, "no names for 3"),
        ({"named_parameters": [("a", p) for p in model.parameters()]}, "several of"),
        ({"named_parameters": model.parameters()}, "pairs"),
        ({"backward_passes_per_step": 0}, "1 or more"),
        ({"op": hvd.Max}, "hvd.Sum"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "op=hvd.Average"),
        ({"groups": [[torch.nn.Parameter(torch.ones(1))]]}, "groups"),
        ({"groups": [list(model.parameters())], "num_groups": 2}, "one of the two"),
    ):
        with pytest.raises(ValueError, match=rf"RK149.*{words}"):
            hvd.DistributedOptimizer(fresh(), **arguments)
    with pytest.raises(ValueError, match=r"RK149.*already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"RK149.*LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(NotImplementedError, match="RK430"):
        hvd.DistributedOptimizer(fresh(), op=hvd.Adasum)


def test_misuse():
    ranks(misuse_worker, 2)


def corners_worker():
    """What scripts do besides: parameters that rest, come, go; closures, schedules."""
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    heads = torch.nn.ModuleList(torch.nn.Linear(3, 1) for _ in range(size + 1))
    for head in heads:
        torch.nn.init.ones_(head.weight)
    optimizer = torch.optim.SGD(heads.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    seen = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(heads[1].bias.grad.tolist())
    )
    hvd.DistributedOptimizer(optimizer, heads.named_parameters())
    hvd.broadcast_parameters(heads.state_dict(), 0)
    before = [head.bias.detach().clone() for head in heads]
    # Each rank uses one head of its own, and nobody the last one.
    heads[rank](torch.ones(1, 3)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        scheduler.step()
    # Hooks see averages, also those that were there before; each once.
    assert seen == [pytest.approx([1 / size])]
    for head, old in zip(heads[:size], before, strict=False):
        assert torch.allclose(head.bias, old - 1.0 / size)
    assert torch.equal(heads[size].bias, before[size])
    # State that is loaded makes torch look at step() anew.
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    heads[rank](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert seen == [pytest.approx([1 / size])] * 2
    # One that comes, one that is frozen.
    optimizer.zero_grad()
    late = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [late], "lr": 1.0})
    heads[0].requires_grad_(False)
    frozen = heads[0].weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        loss = (late * (rank + 1)).sum() + heads[1](torch.ones(1, 3)).sum()
        loss.backward()
        optimizer.step()
    assert torch.allclose(late, torch.full((2,), -(size + 1.0)))
    assert torch.equal(heads[0].weight, frozen)
    heads[0].requires_grad_(True)

    def closure():
        optimizer.zero_grad()
        loss = (late * (rank + 1)).sum()
        loss.backward()
        return loss

    late.data.zero_()
    assert optimizer.step(closure).item() == 0.0
    assert torch.allclose(late, torch.full((2,), -(size + 1.0) / 2))
    with (
        pytest.raises(AssertionError, match=r"RK146.*closure"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step(closure)
    # A rank that has used what others have not, and the sum of all.
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    sparse = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), 1.0), op=hvd.Sum, sparse_as_dense=True
    )
    table(torch.tensor([rank])).sum().backward()
    sparse.step()
    assert table.weight[:, 0].tolist() == [-1.0] * size + [0.0] * (4 - size)
    refused = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), 1.0))
    table.zero_grad()
    del sparse
    gc.collect()
    with pytest.raises(NotImplementedError, match="sparse_as_dense=True"):
        table(torch.tensor([rank])).sum().backward()
    del refused
    # Members of a process set average, and others go on as without Horovod.
    pair = hvd.add_process_set([0, 2]) if size > 2 else hvd.global_process_set
    own = torch.nn.Parameter(torch.zeros(1))
    member = hvd.DistributedOptimizer(torch.optim.SGD([own], 1.0), process_set=pair)
    steps = []
    member.register_step_pre_hook(lambda *_: steps.append(own.grad.item()))
    for _ in range(2):
        member.zero_grad()
        (own * (rank + 1)).sum().backward()
        member.step()
        # After this torch looks whether step() has its hooks.
        member.load_state_dict(member.state_dict())
    mine = (1 + size) / 2 if pair.included() else rank + 1
    assert own.item() == -2 * mine and steps == [mine] * 2
    if pair.included():  # Nobody else has to make one.
        more = torch.nn.Parameter(torch.zeros(1))
        hvd.DistributedOptimizer(torch.optim.SGD([more], 1.0), process_set=pair)
    # Ranks that reduce something else hear of it, on all of them.
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    pairs = [("a", a), ("b", b)] if rank else [("b", a), ("a", b)]
    odd = hvd.DistributedOptimizer(torch.optim.SGD([a, b], 1.0), pairs)
    (a + b).sum().backward()
    with pytest.raises(Exception, match="RK311"):
        odd.step()
    # In another job it begins anew, and nothing of the last step is left.
    (a * b).sum().backward()
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    odd.zero_grad()
    return hvd.allreduce(torch.ones(1)).tolist()


@pytest.mark.parametrize("size", [2, 3])
def test_corners(size):
    assert ranks(corners_worker, size) == [[1.0]] * size


def overlap_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0),
        groups=[[one] for one in model.parameters()],
    )
    seen = []

    def in_the_middle(_):
        # Backward is through with the second layer, and waits here.
        deadline = time.monotonic() + 60
        while model[1].bias.grad.item() != (1 + size) / 2:
            assert time.monotonic() < deadline, "nothing is averaged during backward"
        seen.append(model[0].weight.grad)

    y = model[0](torch.ones(1, 2))
    y.register_hook(in_the_middle)
    ((rank + 1) * model[1](y)).sum().backward()
    optimizer.step()
    return seen


def test_averages_while_backward_runs():
    assert ranks(overlap_worker, 2) == [[None], [None]]


def uneven_worker():
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    model = model_of()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()))
    for step in range(2 + rank):
        x, y = data_of(step)
        optimizer.zero_grad()
        loss_of(model, x[rank::size], y[rank::size]).backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), last)
    return last, weights_of(model)


def test_uneven_join():
    """A rank without data does not count."""
    size = 3
    model = model_of()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for step in range(2 + size - 1):
        x, y = data_of(step)
        parts = [other for other in range(size) if step < 2 + other]
        optimizer.zero_grad()
        losses = [loss_of(model, x[p::size], y[p::size]) for p in parts]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    expected = weights_of(model)
    for last, got in ranks(uneven_worker, size):
        assert last == size - 1
        assert_close(got, expected)


def two_nets_worker():
    """Nets alike in names and shapes, of which one rank's loss leaves one out."""
    hvd = begin_horovod()
    nets = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0)) for net in nets
    ]
    old = optimizers[0]
    optimizers[0] = hvd.DistributedOptimizer(torch.optim.SGD(nets[0].parameters(), 1.0))
    with pytest.raises(AssertionError, match=r"RK146.*Use that one"):
        old.step()
    one = torch.ones(1, 1)
    loss = 10 * nets[1](one).sum()
    if hvd.rank() == 1:
        loss = loss + nets[0](one).sum()
    loss.backward()
    for optimizer in optimizers:
        optimizer.synchronize()
    grads = [float(net.weight.grad) for net in nets]
    # In another job, too, the one that was replaced takes nothing up again.
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    old.zero_grad()
    nets[0](float(hvd.rank()) * one).sum().backward()
    optimizers[0].step()
    return [*grads, float(nets[0].weight.grad)]


def test_each_optimizer_meets_its_own_gradients():
    assert ranks(two_nets_worker, 2) == [[0.5, 10.0, 0.5]] * 2


def closures_worker():
    """Each gradient is summed once, whoever sees to it."""
    hvd = begin_horovod()
    rank, size = hvd.rank(), hvd.size()
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], 0.0), [("weight", weight)], op=hvd.Sum
    )
    total = [float(sum(range(1, size + 1)))] * 3

    def loss():
        optimizer.zero_grad()
        value = (weight * (rank + 1)).sum()
        value.backward()
        return value

    def clipped():
        value = loss()
        optimizer.synchronize()
        return value

    optimizer.step(loss)
    assert weight.grad.tolist() == total
    optimizer.step(clipped)
    assert weight.grad.tolist() == total
    with optimizer.skip_synchronize():
        optimizer.step(clipped)
    assert weight.grad.tolist() == total
    loss()
    optimizer.synchronize()
    optimizer.step(lambda: 0.0)
    assert weight.grad.tolist() == total
    with (
        pytest.raises(AssertionError, match=r"RK146.*synchronize\(\) in it"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step(loss)
    optimizer.synchronize()

    # What was averaged is gone, and one rank alone has new ones.
    loss()
    optimizer.synchronize()
    optimizer.zero_grad()
    if rank == 0:
        (weight * 5.0).sum().backward()
    optimizer.step()
    assert weight.grad.tolist() == [5.0] * 3


def test_closures():
    ranks(closures_worker, 2)


def parts_worker():
    """Gradients that are parts of one tensor, in buckets of their own."""
    hvd = begin_horovod()
    rank = hvd.rank()
    parts = [torch.nn.Parameter(torch.ones(2, 4)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parts, 0.0), groups=[[one] for one in parts]
    )
    x = torch.full((1, 4), rank + 1.0)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.linear(x, torch.cat(parts)).sum().backward()
        optimizer.step()
        for one in parts:
            assert (one.grad == 1.5).all()
    flat = torch.zeros(16)
    for number, one in enumerate(parts):
        one.grad = flat[8 * number : 8 * (number + 1)].view_as(one)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for one in parts:
            (x @ one.t()).sum().backward()
        optimizer.step()
        assert (flat == 1.5).all()


def test_parts_of_one_tensor():
    ranks(parts_worker, 2)
