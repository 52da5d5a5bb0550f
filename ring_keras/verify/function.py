"""The comparison as a function, for tests and notebooks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import ring_keras as ring
from ring_keras.verify.comparison import Comparison, compare_steps
from ring_keras.verify.of_all_ranks import gather
from ring_keras.verify.one_process import leave_job
from ring_keras.verify.recording import EnoughStepsError, Recording

__all__ = ["compare"]


def compare(train: Callable[[], object], steps: int = 3) -> Comparison:
    """Says where a training on the ranks first differs from one in one process.

    It is a collective over the whole job. Every rank runs `train` until its first
    `model.fit` has taken some steps, and ends `train` there. Rank 0 then repeats the
    same steps alone, with the ranks' batches concatenated. For that the ranks leave the
    job, and join its next generation: add process sets again, and compile earlier
    models again. The others wait for rank 0 up to `RING_KERAS_INIT_TIMEOUT_S` seconds.

    Unlike `ring verify`, it cannot run the function as a job of one process. So it does
    not compare the data and the learning rate with those of one process.

    Examples:
        >>> def train():
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        ...     mine = ring.data.shard((x, y), seed=1)
        ...     model.fit(*mine, batch_size=8, verbose=0)
        >>> comparison = ring.verify.compare(train, steps=2)
        >>> comparison.findings
        []

    Args:
        train: A function that makes its data and its model, and calls `model.fit`. Do
            not use the model afterwards.
        steps: The number of steps to compare.

    Returns:
        The differences, in `findings`, the same on every rank. Empty: there are none.

    Raises:
        ValueError: If `steps` is less than 1.
        RingKerasError: On every rank, if there is nothing to compare (the job has one
            rank, or `train` took no step of a `fit`), or if rank 0 cannot repeat the
            steps.
        PeerLostError: If `train` raised on another rank, which raises its own error.
            All ranks have left the job then.
        RankMismatchError: The same, if the `fit` of another rank's `train` raised.
    """
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    recording = Recording(steps)
    with _leaving_on_error():
        with contextlib.suppress(EnoughStepsError), recording.of_first_fit():
            train()
        joined = ring.is_initialized()
        if not joined:
            ring.init()
        taken = ring.allgather_object(len(recording.after), name="verify/taken")
    _require_steps(taken)
    of_all = gather(recording)
    result: dict[str, Any] | str = ""
    rank = ring.rank()
    with _rejoining():
        if rank == 0:
            try:
                leave_job()
                result = asdict(compare_steps(recording, of_all, None, joined))
            except Exception as error:  # The others wait for it.
                result = f"rank 0 cannot compare: {type(error).__name__}: {error}"
        else:
            ring.shutdown("its steps were recorded")
    result = ring.broadcast_object(result, name="verify/result")
    if isinstance(result, str):
        raise ring.RingKerasError(f"[RK411] {result}")
    return Comparison(**result)


@contextlib.contextmanager
def _leaving_on_error() -> Iterator[None]:
    """The others may wait for this rank anywhere: they learn why it does not come."""
    try:
        yield
    except Exception as error:
        ring.shutdown(f"its `train` raised {type(error).__name__}: {error}"[:500])
        raise


def _require_steps(taken: Sequence[int]) -> None:
    if len(taken) == 1:
        raise ring.RingKerasError(
            "[RK411] "
            "a comparison needs two ranks or more: start it by `ringrun -np 2 ...`."
        )
    ranks = [rank for rank, steps in enumerate(taken) if not steps]
    if ranks:
        raise ring.RingKerasError(
            "[RK411] "
            f"`train` took no step of model.fit() on ranks {ranks}. It must call it "
            "on every rank."
        )


@contextlib.contextmanager
def _rejoining() -> Iterator[None]:
    """Inside, rank 0 is a job of its own; the others wait for it at the end."""
    environment = dict(os.environ)
    try:
        yield
    finally:
        ring.shutdown()
        os.environ.clear()
        os.environ.update(environment)
        ring.init()
