"""Real ranks under Keras's other back ends: no TensorFlow, and no Keras.

Neither torch nor JAX need be installed: the environment says which back end it is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import run_ranks
from support.engine_only import WITHOUT_TENSORFLOW
from support.ringrun import Ringrun

import ring_keras as ring

TORCH, JAX = (
    {**WITHOUT_TENSORFLOW, "KERAS_BACKEND": name} for name in ("torch", "jax")
)


def frameworks() -> list[str]:
    """Those that this process has loaded."""
    loaded = {name.partition(".")[0] for name in sys.modules}
    return sorted(loaded & {"jax", "keras", "tensorflow", "torch"})


def two_memberships() -> list[Any]:
    seen: list[Any] = []
    for sign in (1, -1):
        ring.init(process_sets=[[1]])
        rank = ring.rank()
        first = ring.add_process_set([0])
        values = ring.shared_empty(3, np.float32)
        values[:] = sign * rank
        seen += [
            (ring.size(), ring.local_size(), ring.cross_size(), rank == 1),
            ring.allgather_object({"rank": sign * rank}),
            ring.broadcast_object(f"of rank {rank}", 1),
            ring.agree_on(("alike", sign)),
            ring.allgather_object(sign, process_set=first) if rank == 0 else None,
            ring.prepare_allreduce(values)().tolist(),
            ring.prepare_allreduce(np.int8([rank]), ring.Sum)().tolist(),
            ring.monitoring.stats().size,
        ]
        with pytest.raises(ValueError, match=r"\[RK402\].*cannot average int8"):
            ring.prepare_allreduce(np.int8([rank]))
        assert ring.remove_process_set(first)
        ring.shutdown()
        with pytest.raises(ring.NotInitializedError, match="RK101"):
            ring.rank()
    return [*seen, frameworks()]


@pytest.mark.parametrize("env", [TORCH, JAX], ids=["torch", "jax"])
def test_ranks_join_talk_leave_and_join_again(env: dict[str, str]) -> None:
    results = run_ranks(two_memberships, 2, env=env)

    for rank, result in enumerate(results):
        of_sign = [
            [
                (2, 2, 1, rank == 1),
                [{"rank": 0}, {"rank": sign}],
                "of rank 1",
                ("alike", sign),
                [sign] if rank == 0 else None,
                [sign / 2] * 3,
                [1],
                2,
            ]
            for sign in (1, -1)
        ]
        assert result == [*of_sign[0], *of_sign[1], []]


def lose_a_rank() -> tuple[str, str | None, list[str]]:
    ring.init()
    if ring.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ring.allgather_object("for whom?")
    except ring.PeerLostError as error:
        with ring.errors.translated():
            pass
        assert ring.errors.from_tensorflow(error) is error
        return str(error), error.code, frameworks()
    return "nobody was lost", None, []


def test_a_rank_that_dies_is_named() -> None:
    first, second = run_ranks(lose_a_rank, 2, env=TORCH, check=False)

    assert second.signal == signal.SIGKILL
    text, code, loaded = first.result
    assert code == "RK201"
    assert "rank 1" in text
    assert loaded == []


def test_ranks_of_two_back_ends_do_not_join() -> None:
    for outcome in run_ranks(ring.init, 2, env=[TORCH, JAX], check=False):
        assert outcome.exception_type == "RankMismatchError"
        assert outcome.message == (
            "[RK117] Keras's back end (KERAS_BACKEND) is torch on rank 0 and jax on "
            "rank 1. Set it to the same on all."
        )


def init_and_frameworks() -> list[str]:
    ring.init()
    return frameworks()


@pytest.mark.parametrize("device", ["cpu", "1"])
def test_no_gpu_is_chosen(device: str) -> None:
    env = TORCH | {"RING_KERAS_DEVICE": device}
    (outcome,) = run_ranks(init_and_frameworks, 1, env=env, check=False)

    if device == "cpu":  # Where all of this is, anyway.
        assert outcome.result == []
        return
    assert outcome.exception_type == "ConfigError"
    assert outcome.message.startswith(
        "[RK138] RING_KERAS_DEVICE=1, but with Keras's back end torch ring_keras"
    )


@pytest.fixture
def ringrun(tmp_path: Path) -> Iterator[Ringrun]:
    runner = Ringrun(tmp_path)
    yield runner
    runner.close()


def test_an_elastic_loop_goes_on_without_a_rank(ringrun: Ringrun) -> None:
    script = """
    import ring_keras as ring
    ring.init()
    state = ring.elastic.ObjectState(step=0, sizes=[])

    @ring.elastic.run
    def train(state):
        while state.step < 6:
            if rank == 1 and state.step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            state.sizes = [*state.sizes, len(ring.allgather_object(rank))]
            state.step += 1
            state.commit()

    train(state)
    note("sizes", state.sizes)
    note("loaded", {"tensorflow", "keras"} & set(sys.modules))
    """
    finished = ringrun.run(script, "--min-np", "1", env={"KERAS_BACKEND": "torch"})

    assert finished.returncode == 0, finished.stderr.decode()
    assert ringrun.noted("sizes") == "[2, 2, 2, 1, 1, 1]"
    assert ringrun.noted("loaded") == "set()"


def test_functions_run_as_ranks() -> None:
    options = ["-x", "KERAS_BACKEND=jax"]
    assert ring.run(init_and_frameworks, np=2, options=options) == [[], []]
