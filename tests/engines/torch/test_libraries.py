"""Libraries around PyTorch, over the back end ring by two lines, beside one process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="`make test-engines`")

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

COMMON = """
    import json, sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    layer = torch.nn.Linear(8, 3).double()
    data = torch.randn(64, 8, dtype=torch.float64), torch.randint(3, (64,))
    loss_of = torch.nn.functional.cross_entropy

    def loader(batch, **options):
        return DataLoader(TensorDataset(*data), batch_size=batch, **options)

    def optimizer_of(parameters):
        return torch.optim.Adam(parameters, 0.01)
"""

SCRIPTS = {
    "accelerate": """
        import torch.distributed as dist
        import ring_keras.torch
        from accelerate import Accelerator

        dist.init_process_group("ring")
        accelerator = Accelerator(cpu=True)
        model, optimizer, batches = accelerator.prepare(
            layer, optimizer_of(layer.parameters()), loader(8)
        )
        for _ in range(2):
            for x, y in batches:
                optimizer.zero_grad()
                accelerator.backward(loss_of(model(x), y))
                optimizer.step()
        ones = torch.ones(1)
        assert accelerator.gather(ones).tolist() == [1.0] * accelerator.num_processes
        assert accelerator.num_processes == 2
        accelerator.wait_for_everyone()
    """,
    "lightning": """
        import torch.distributed as dist
        import lightning.pytorch as lightning
        import ring_keras.torch
        from lightning.pytorch.strategies import DDPStrategy

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def training_step(self, batch, index):
                x, y = batch
                loss = loss_of(self.layer(x), y)
                self.log("loss", loss, sync_dist=True)
                return loss

            def configure_optimizers(self):
                return optimizer_of(self.parameters())

        strategy = DDPStrategy(process_group_backend="ring")
        quiet = dict.fromkeys(
            [
                "logger",
                "enable_checkpointing",
                "enable_progress_bar",
                "enable_model_summary",
            ],
            False,
        )
        # Its own would shuffle.
        sampler = torch.utils.data.DistributedSampler(
            data[0], num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False
        )
        quiet["use_distributed_sampler"] = False
        trainer = lightning.Trainer(
            accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, **quiet
        )
        trainer.fit(Module(), loader(8, sampler=sampler))
        assert trainer.world_size == 2
    """,
}

ALONE = """
    optimizer = optimizer_of(layer.parameters())
    for _ in range(2):
        for x, y in loader(16):
            optimizer.zero_grad()
            loss_of(layer(x), y).backward()
            optimizer.step()
"""

END = """
    with open(sys.argv[1] + os.environ.get("RANK", ""), "w") as file:
        json.dump(layer.weight.tolist(), file)
"""


def run(directory: Path, script: str, *launcher: str) -> None:
    path = directory / "script.py"
    parts = ("import os", COMMON, script, END)
    path.write_text("\n".join(map(textwrap.dedent, parts)))
    command = [sys.executable, *launcher, str(path), str(directory / "weights")]
    finished = subprocess.run(
        command, capture_output=True, text=True, timeout=250, check=False
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_trains_as_one_process(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not there: `make test-engines`")
    run(tmp_path, ALONE)
    expected = json.loads((tmp_path / "weights").read_text())
    is_ring = '\nassert dist.get_backend() == "ring"\n'
    script = textwrap.dedent(SCRIPTS[name]) + is_ring
    run(tmp_path, script, "-m", "torch.distributed.run", "--nproc-per-node=2")

    for rank in range(2):
        weights = json.loads((tmp_path / f"weights{rank}").read_text())
        torch.testing.assert_close(
            torch.tensor(weights, dtype=torch.float64),
            torch.tensor(expected, dtype=torch.float64),
            rtol=1e-12,
            atol=1e-12,
        )


def test_who_looks_for_horovods_names_is_told_where_they_are():
    import ring_keras.torch

    with pytest.raises(AttributeError, match=r"ring_keras\.horovod\.torch"):
        _ = ring_keras.torch.DistributedOptimizer
