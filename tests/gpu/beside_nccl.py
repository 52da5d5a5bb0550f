"""Our allreduce on a GPU beside NCCL's own, through torch; prints Markdown.

Ranks share one GPU, so the times say nothing of any cluster. Both do the same work in
the same place, in turn: the ratio says what we add to NCCL. `host` is how long a call
keeps the calling thread. `hidden` is the share of an allreduce that a stream of matrix
products beside it hides.
"""

from __future__ import annotations

import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT_DIR / "tests"), str(ROOT_DIR / "tests" / "gpu")]

from support import run_ranks  # noqa: E402
from support.engine_only import join  # noqa: E402
from support.real_gpu import real_gpu_environment  # noqa: E402

from ring_keras import _native  # noqa: E402

ROUNDS = 9


def measure(meeting: str) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """For each size: bytes, ranks, our and NCCL's seconds a call, those of the host.

    And the shares that are hidden: bytes, ranks, ours, NCCL's.
    """
    import torch
    import torch.distributed

    rank, size = join()
    torch.distributed.init_process_group(
        "nccl", f"file://{meeting}", world_size=size, rank=rank
    )

    def ours(tensor: Any, times: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for _ in range(times):
            _native.device_allreduce(
                [(tensor.data_ptr(), tuple(tensor.shape))],
                [tensor.data_ptr()],
                "float32",
                0,
                stream,
                name="x",
            ).follow(stream)

    def theirs(tensor: Any, times: int) -> None:
        for _ in range(times):
            torch.distributed.all_reduce(tensor)

    def timed(call: Callable[[Any, int], None], tensor: Any, times: int) -> Any:
        torch.cuda.synchronize()
        _native.barrier("next")
        start = time.perf_counter()
        call(tensor, times)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / times, (returned - start) / times

    rows = []
    for kib in (1, 64, 1024, 16 * 1024, 64 * 1024, 256 * 1024):
        tensor = torch.zeros(kib * 256, device="cuda")
        times = 50 if kib <= 1024 else 8
        if size > 1:
            times = 10 if kib <= 1024 else 2
        for call in (ours, theirs):
            timed(call, tensor, 2)
        rounds = [
            [*timed(ours, tensor, times), *timed(theirs, tensor, times)]
            for _ in range(ROUNDS)
        ]
        our, our_host, their, their_host = map(
            statistics.median, zip(*rounds, strict=True)
        )
        rows.append((kib * 1024, size, our, their, our_host, their_host))
    factor = torch.randn(4096, 4096, device="cuda")
    product = torch.empty_like(factor)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(factor, factor, out=product)

    def our_beside(tensor: Any, products: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        operation = _native.device_allreduce(
            [(tensor.data_ptr(), tuple(tensor.shape))],
            [tensor.data_ptr()],
            "float32",
            0,
            stream,
            name="x",
        )
        multiply(products)
        operation.follow(stream)

    def their_beside(tensor: Any, products: int) -> None:
        operation = torch.distributed.all_reduce(tensor, async_op=True)
        multiply(products)
        operation.wait()

    hidden = []
    for mib in (16, 64):
        tensor = torch.zeros(mib * 1024 * 256, device="cuda")
        one = timed(lambda _, times: multiply(times), tensor, 20)[0]
        alone = timed(theirs, tensor, 3)[0]
        # As long as the allreduce, by the slower rank's clock.
        products = max(1, round(alone / one))
        products = int(_native.allreduce(np.array([products]), "max", "products")[0])
        rounds = []
        for _ in range(ROUNDS):
            computed = timed(lambda _, times: multiply(times), tensor, products)[0]
            computed *= products
            shares = []
            for call, beside in ((ours, our_beside), (theirs, their_beside)):
                sent = timed(call, tensor, 1)[0]
                both = timed(beside, tensor, products)[0] * products
                shares.append((computed + sent - both) / min(computed, sent))
            rounds.append(shares)
        shares = map(statistics.median, zip(*rounds, strict=True))
        hidden.append((mib * 1024 * 1024, size, *shares))
    torch.distributed.destroy_process_group()
    return rows, hidden


def main() -> None:
    """With one rank, and with two."""
    hidden = []
    print("| ranks | bytes | ours us | NCCL us | ratio | host: ours us | torch us |")
    print("|---|---|---|---|---|---|---|")
    for size in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            # Ranks find the function by the name of a module.
            worker = importlib.import_module("beside_nccl").measure
            (rows, shares), *_ = run_ranks(
                worker,
                size,
                args=(f"{directory}/meeting",),
                env=real_gpu_environment(size),
            )
        for nbytes, ranks, our, their, our_host, their_host in rows:
            print(
                f"| {ranks} | {nbytes} | {our * 1e6:.1f} | {their * 1e6:.1f} "
                f"| **{their / our:.2f}** | {our_host * 1e6:.1f} "
                f"| {their_host * 1e6:.1f} |",
                flush=True,
            )
        hidden += shares
    print("\n| ranks | bytes | ours hidden | NCCL hidden |\n|---|---|---|---|")
    for nbytes, ranks, ours, theirs in hidden:
        print(f"| {ranks} | {nbytes} | {ours:.2f} | {theirs:.2f} |")


if __name__ == "__main__":
    os.chdir(ROOT_DIR)
    main()
