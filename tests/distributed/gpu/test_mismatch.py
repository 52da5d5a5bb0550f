"""Ranks that disagree about tensors on GPUs: one error, and the job goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import RankPool
from support.engine_only import rank_and_size
from support.gpu_calls import gpu

from ring_keras import _native


def message_of(submit: Callable[[], Any]) -> str:
    _, size = rank_and_size()
    pending = submit()
    with pytest.raises(RuntimeError, match=r"^RankMismatchError: ") as info:
        pending.operation.wait()
    pending.free()
    after = gpu().allreduce([np.ones(3, np.float32)], name="after")
    assert after.result[0] == size
    return str(info.value)


def host_or_device(last: bool) -> str:
    _, size = rank_and_size()
    values = np.ones(3, np.float32)
    if last:
        with pytest.raises(RuntimeError, match=r"^RankMismatchError: ") as info:
            _native.allreduce(values, "sum", "my memory")
        assert gpu().allreduce([values], name="after").result[0] == size
        return str(info.value)
    return message_of(lambda: gpu().allreduce([values], name="my memory"))


def messages() -> dict[str, str]:
    rank, size = rank_and_size()
    last = rank == size - 1
    ones = np.ones((2, 3), np.float32)
    return {
        "shape": message_of(
            lambda: gpu().allreduce([ones.T.copy() if last else ones], name="my shape")
        ),
        "dtype": message_of(
            lambda: gpu().allreduce(
                [ones.astype(np.float64) if last else ones], name="my dtype"
            )
        ),
        "op": message_of(
            lambda: gpu().allreduce([ones], op="max" if last else "sum", name="my op")
        ),
        "root": message_of(
            lambda: gpu().broadcast([ones], 1 if last else 0, name="my root")
        ),
        "kind": message_of(
            lambda: (
                gpu().allgather(ones, name="my kind")
                if last
                else gpu().allreduce([ones], name="my kind")
            )
        ),
        "memory": host_or_device(last),
    }


def test_every_rank_gets_the_same_error(peers: RankPool) -> None:
    results = peers.run(messages, timeout_s=120)

    assert all(result == results[0] for result in results)
    for key, message in results[0].items():
        assert f"'my {key}'" in message, message
        assert f"rank {peers.size - 1}" in message, message
    assert "GPU" in results[0]["memory"] and "CPU" in results[0]["memory"]
