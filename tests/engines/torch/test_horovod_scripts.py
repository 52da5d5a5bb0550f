"""Scripts of horovod.torch as they are, under `ringrun --horovod`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ringrun import Ringrun

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = pytest.mark.engines


@pytest.fixture
def ringrun(tmp_path: Path) -> Iterator[Ringrun]:
    """Leaves no rank behind."""
    ringrun = Ringrun(tmp_path)
    yield ringrun
    ringrun.close()


_SCRIPT = """
import torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async
from horovod.torch.compression import Compression

hvd.init()
torch.manual_seed(hvd.rank())
data = torch.utils.data.TensorDataset(
    torch.linspace(-1, 1, 32).reshape(16, 2), torch.linspace(0, 1, 16).reshape(16, 1)
)
sampler = torch.utils.data.distributed.DistributedSampler(
    data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.Linear(2, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=Compression.none
)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
x, y = data[:]
loss = hvd.allreduce(torch.nn.functional.mse_loss(model(x), y), name="loss")
assert hvd.synchronize(allreduce_async(torch.ones(1), op=hvd.Sum)).item() == hvd.size()
note(f"end.{rank}", [*model.weight.flatten().tolist(), loss.item()])
assert "tensorflow" not in sys.modules and "keras" not in sys.modules
"""


def test_a_script(ringrun: Ringrun) -> None:
    finished = ringrun.run(_SCRIPT, "--horovod")

    assert finished.returncode == 0, finished.stderr.decode()
    assert b"`import horovod` gives ring_keras.horovod in this job" in finished.stderr
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.linspace(-1, 1, 32).reshape(16, 2), torch.linspace(0, 1, 16)
    for _ in range(3):
        for batch in range(2):
            rows = slice(8 * batch, 8 * batch + 8)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[rows])[:, 0], y[rows]).backward()
            optimizer.step()
    loss = torch.nn.functional.mse_loss(model(x)[:, 0], y).item()
    expected = [*model.weight.flatten().tolist(), loss]
    said = [json.loads(ringrun.noted(f"end.{number}")) for number in range(2)]
    assert said[0] == said[1] == pytest.approx(expected, abs=1e-6)


# All ranks have the same batch, so that their number makes no difference. The second
# optimizer is made in the job of those ranks.
_LOOP = """
import signal, torch
import horovod.torch as hvd

number, resets = rank, []
hvd.init()
torch.manual_seed(number)
model = torch.nn.Sequential(
    torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, scheduler=scheduler, step=0, sizes=[], last=None
)
state.register_reset_callbacks([lambda: resets.append(hvd.size())])

def backward(step):
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3) * (1 + step % 3)
    model(x).square().sum().backward()

@hvd.elastic.run
def train(state):
    second = torch.nn.Linear(1, 1)
    other = torch.optim.SGD(second.parameters(), lr=0.01)
    other = hvd.DistributedOptimizer(other, second.named_parameters())
    while state.last is None or state.step < state.last:
        if state.sizes[-1:] != [hvd.size()]:
            state.sizes = [*state.sizes, hvd.size()]
            if len(state.sizes) == 3:
                state.last = state.step + 6
        optimizer.zero_grad()
        backward(state.step)
        if number == 0 and state.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
        other.zero_grad()
        second(torch.ones(1, 1)).sum().backward()
        other.step()
        state.step += 1
        state.commit()
        time.sleep(0.01)

train(state)
weights = [one.flatten().tolist() for one in model.parameters()]
note(f"end.{number}", [state.step, state.sizes, resets, weights])
"""


def test_a_lost_rank_is_replaced(ringrun: Ringrun) -> None:
    """In the middle of a step, of which nothing remains."""
    options = ["--min-np", "1", "--max-np", "2", "--horovod"]
    finished = ringrun.finish(
        ringrun.start(_LOOP, *options, "--blacklist-cooldown-range", "0", "0"), 120
    )

    assert finished.returncode == 0, finished.stderr.decode()
    steps, sizes, resets, weights = json.loads(ringrun.noted("end.1"))
    assert (sizes, resets) == ([2, 1, 2], [1, 2])
    assert json.loads(ringrun.noted("end.2")) == [steps, sizes, [], weights]
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    for step in range(steps):
        optimizer.zero_grad()
        model(x * (1 + step % 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    for got, expected in zip(weights, model.parameters(), strict=True):
        assert got == pytest.approx(expected.flatten().tolist(), abs=1e-12)
