"""`horovod.ray.ElasticRayExecutor`: a function on ranks that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from ring_keras.horovod._absent import refuse_unless_default
from ring_keras.ray import run_elastic

__all__ = ["ElasticRayExecutor", "rank_variables", "run_on_most"]

_NO_GPUS = "Elastic jobs run on CPUs: see docs/elastic.md."
_NO_DISCOVERY = "Ray finds the hosts."
_NO_CALLBACKS = "Return what is to be known."


@dataclass
class _ElasticSettings:
    """Made by `ElasticRayExecutor.create_settings`."""

    min_num_proc: int
    max_num_proc: int | None
    reset_limit: int | None
    elastic_timeout: float
    timeout_s: float
    nics: Iterable[str] | None


class ElasticRayExecutor:
    """Runs functions as the ranks of a job that goes on when some are lost.

    Args:
        settings: Of `create_settings`.
        use_gpu: False: elastic jobs run on CPUs.
        cpus_per_slot: How many of Ray's CPUs a rank takes.
        gpus_per_slot: None.
        env_vars: Variables that each rank gets.
        override_discovery: True: Ray finds the hosts.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Iterable[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
    ) -> _ElasticSettings:
        """Settings for the constructor.

        Args:
            min_num_proc: The fewest ranks with which the job begins, and goes on.
            max_num_proc: Up to so many; by default as many as the cluster has CPUs for
                when `run` begins.
            reset_limit: After so many changes another one ends the job.
            elastic_timeout: Time, in seconds, for the ranks to meet after a change.
            timeout_s: How long, in seconds, `init()` waits for the other ranks.
            ssh_identity_file: Ignored: nothing goes through ssh.
            nics: The network interfaces to take.
            min_np: The older name of `min_num_proc`.
            max_np: The older name of `max_num_proc`.
        """
        return _ElasticSettings(
            min_num_proc if min_np is None else min_np,
            max_num_proc if max_np is None else max_np,
            reset_limit,
            elastic_timeout,
            timeout_s,
            nics,
        )

    def __init__(
        self,
        settings: _ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        override_discovery: bool = True,
    ) -> None:
        refuse_unless_default("use_gpu", use_gpu, False, _NO_GPUS)
        refuse_unless_default("gpus_per_slot", gpus_per_slot, None, _NO_GPUS)
        refuse_unless_default(
            "override_discovery", override_discovery, True, _NO_DISCOVERY
        )
        self._settings = settings
        self._cpus = cpus_per_slot
        self._env = dict(env_vars or {})

    def start(self) -> None:
        """Has nothing to do: `run` starts the ranks."""

    def run(
        self,
        worker_fn: Callable[[], Any],
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls a function on every rank.

        Args:
            worker_fn: The function, which calls `init()`; takes nothing.
            callbacks: None.

        Returns:
            What it returned, by rank, on those that there were at the end.

        Raises:
            RankFailedError: If the job could not go on.
        """
        refuse_unless_default("callbacks", callbacks, None, _NO_CALLBACKS)
        settings = self._settings
        return run_on_most(
            worker_fn,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            cpus_per_worker=self._cpus,
            env=rank_variables(settings.timeout_s, settings.nics) | self._env,
            elastic_timeout=settings.elastic_timeout,
            reset_limit=settings.reset_limit,
        )


def run_on_most(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_workers: int,
    max_workers: int | None,
    cpus_per_worker: int,
    **options: Any,
) -> list[Any]:
    """`run_elastic`; without `max_workers`, as many as the cluster has CPUs for now."""
    if max_workers is None:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        max_workers = max(min_workers, cpus // cpus_per_worker)
    return run_elastic(
        fn,
        args,
        kwargs,
        min_workers=min_workers,
        max_workers=max_workers,
        cpus_per_worker=cpus_per_worker,
        **options,
    )


def rank_variables(timeout_s: float, nics: Iterable[str] | None) -> dict[str, str]:
    """What settings say to ranks."""
    variables = {"RING_KERAS_INIT_TIMEOUT_S": f"{timeout_s:g}"}
    if nics:
        variables["RING_KERAS_INTERFACES"] = (
            nics if isinstance(nics, str) else ",".join(nics)
        )
    return variables
