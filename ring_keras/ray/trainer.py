"""Training whose ranks are Ray Train's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ring_keras.ray.backend import RingConfig

__all__ = ["RingTrainer"]


class RingTrainer(DataParallelTrainer):
    """Runs a function in each of Ray Train's workers, as the ranks of a job.

    The function calls `ring_keras.init()`, as a script under `ringrun` does, and may
    use all that Ray Train gives to its workers: `ray.train.report`, `get_checkpoint`,
    `get_dataset_shard`. `ring_keras.rank()` is Ray Train's world rank, and ranks of
    one host share memory; Ray puts workers there together as far as they fit, unless
    `ScalingConfig(placement_strategy=...)` says otherwise. However the function ends
    in a worker, it leaves the job, and no other waits for it.

    When a worker fails, `fit()` raises Ray Train's error, which has the failures by
    rank; with `RunConfig(failure_config=FailureConfig(max_failures=...))` all workers
    start anew instead, and find the last checkpoint that was reported.

    Args:
        train_loop_per_worker: The function; takes nothing, or `train_loop_config`.
        train_loop_config: What it takes.
        scaling_config: How many workers, and what each needs; Ray Train's own.
        run_config: Where checkpoints lie, and what follows a failure; Ray Train's own.
        datasets: Of Ray Data; each worker gets its shard of them by name.
        dataset_config: How they are divided; Ray Train's own.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=RingConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
        )
