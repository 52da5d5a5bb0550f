"""One rank of a job of torch, which trains the same network on the same digits.

`torch_rank.py TASK FILE`, with the Python of its environment; see `rank.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

BATCH = 8
TEST_COUNT = 360


def build_model() -> nn.Module:
    """The `mlp` of `rank.py`."""
    return nn.Sequential(
        *(nn.Linear(64, 2048), nn.SiLU(), nn.Linear(2048, 1024), nn.SiLU()),
        nn.Linear(1024, 10),
    )


def main() -> None:
    """Trains; the first window is not counted."""
    task = json.loads(sys.argv[1])
    rank, address = int(os.environ["PEER_RANK"]), os.environ["PEER_ADDRESS"]
    steps, epochs = task["steps"], task["epochs"]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16.0).astype(np.float32))
    y = torch.from_numpy(labels)
    order = np.random.default_rng(1).permutation(len(images))
    test, train = order[:TEST_COUNT], order[TEST_COUNT:]
    mine = train[rank :: task["size"]]
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    kind = task["way"]["kind"]
    manager = None
    if kind == "ddp":
        model = _distributed(model, rank, task)
    elif kind != "alone":
        manager = _manager(model, optimizer, task, address)
    random = np.random.default_rng(rank)
    loss = nn.CrossEntropyLoss()
    ends: list[float] = []
    with _training(kind, manager, model, optimizer, task):
        for _ in range(epochs):
            for _ in range(steps):
                batch = random.choice(mine, BATCH)
                optimizer.zero_grad()
                loss(model(x[batch]), y[batch]).backward()
                optimizer.step()
            ends.append(time.perf_counter())
    if rank == 0:
        with torch.no_grad():
            outputs = model(x[test])
        pairs = itertools.pairwise(ends)
        result = {
            "step_s": [(end - begin) / steps for begin, end in pairs],
            "step_bytes": [0.0] * (epochs - 1),
            "loss": float(loss(outputs, y[test])),
            "accuracy": float((outputs.argmax(1) == y[test]).float().mean()),
        }
        Path(sys.argv[2]).write_text(json.dumps(result))
    if manager is not None:
        time.sleep(2)  # Others may be in their last meeting.
        manager.shutdown(wait=False)
    os._exit(0)


def _distributed(model: nn.Module, rank: int, task: dict[str, Any]) -> nn.Module:
    """With the gradients of all ranks averaged, as they are or by PowerSGD."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=os.environ["PEER_STORE"],
        rank=rank,
        world_size=task["size"],
    )
    columns = task["way"].get("powersgd")
    if columns is None:
        return nn.parallel.DistributedDataParallel(model)
    # One bucket: on Gloo the callbacks of several start collectives in an order of each
    # rank's own, so that messages of different lengths meet.
    distributed = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1000)
    # 2 is the first step from which torch lets it begin.
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=columns, start_powerSGD_iter=2
    )
    distributed.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return distributed


def _manager(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: dict[str, Any], host: str
) -> Manager:
    timeout = timedelta(seconds=300)
    store = torch.distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=lambda state: model.load_state_dict(state["model"]),
        state_dict=lambda: {"model": model.state_dict()},
        min_replica_size=task["size"],
        use_async_quorum=task["way"]["kind"] != "diloco",
        timeout=timeout,
        quorum_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        lighthouse_addr=os.environ["PEER_LIGHTHOUSE"],
        replica_id=f"replica{os.environ['PEER_RANK']}",
        hostname=host,
        init_sync=False,
    )
    manager.kept_store = store  # It ends with its last reference.
    return manager


def _training(
    kind: str,
    manager: Manager | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: dict[str, Any],
) -> Any:
    """What is around the steps."""
    way = task["way"]
    if manager is None:
        return contextlib.nullcontext()
    if kind == "average":
        return LocalSGD(manager, model, optimizer, sync_every=way["sync_every"])
    outer = torch.optim.SGD(
        model.parameters(), 0.7, momentum=way["momentum"], nesterov=True
    )
    return DiLoCo(
        manager,
        [model],
        optimizer,
        outer,
        sync_every=way["sync_every"],
        pin_memory=False,
    )


if __name__ == "__main__":
    main()
