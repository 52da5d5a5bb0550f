"""DistributedDataParallel and others over the back end ring, beside one process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.torch_ranks import begin, ranks

torch = pytest.importorskip("torch", reason="`make test-engines`")
dist = pytest.importorskip("torch.distributed", reason="`make test-engines`")

pytestmark = pytest.mark.engines

STEPS = 5
BATCH = 12


def build():
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)]
    return torch.nn.Sequential(*layers).double()


def batches():
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
        yield x, torch.randint(3, (BATCH,), generator=generator)


def train(model, part=slice(None)):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for x, y in batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    return [weights.detach().clone() for weights in model.parameters()]


def train_worker(how):
    rank, size = begin()
    part = slice(rank, None, size)
    model = build()
    if rank:  # The first rank's weights count.
        torch.nn.init.zeros_(model[0].weight)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), src=0)
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
        return [one.full_tensor() for one in train(model, part)]
    # Several buckets, which torch does not compile.
    bucket_cap_mb = None if how == "compiled" else 0.001
    model = torch.nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=how == "views"
    )
    if how == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, default_hooks.allreduce_hook)
    if how == "compiled":
        return train(torch.compile(model, backend="aot_eager"), part)
    return train(model, part)


@pytest.mark.parametrize("how", ["plain", "views", "hook", "compiled", "fsdp"])
@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_one_process(how, size):
    expected = train(build())
    for weights in ranks(train_worker, size, how):
        for got, one in zip(weights, expected, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-12, atol=1e-12)


SCRIPT = """
    import sys
    import torch, torch.distributed as dist
    import ring_keras.torch
    dist.init_process_group("ring"{method})
    one = torch.ones(1)
    dist.all_reduce(one)
    # In one piece, as ranks share the output.
    print(f"sum {{one.item()}} {{dist.get_backend()}} {{'tensorflow' in sys.modules}}")
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launcher", "method"),
    [
        (["ring_keras.launch", "-np", "2", sys.executable], ', init_method="ring://"'),
        (["torch.distributed.run", "--standalone", "--nproc-per-node=2"], ""),
    ],
    ids=["ringrun", "torchrun"],
)
def test_launchers(tmp_path: Path, launcher, method):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(method=method)))
    finished = subprocess.run(
        [sys.executable, "-m", *launcher, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("sum 2.0 ring False") == 2


RESTARTED = """
    import os, sys
    import torch, torch.distributed as dist
    import ring_keras.torch
    dist.init_process_group("ring")
    for _ in range(2):
        one = torch.ones(1)
        dist.all_reduce(one, group=dist.new_group([0, 1]))
        assert one.item() == 2
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    print(f"done {one.item()}")
    dist.destroy_process_group()
"""


def test_a_restart_has_nothing_of_the_life_before(tmp_path: Path) -> None:
    """The agent's store, which torch keeps, has."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(RESTARTED))
    launcher = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=1"
    finished = subprocess.run(
        [sys.executable, "-m", *launcher.split(), str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("done 2.0") == 2
