"""`horovod.ray`: functions on ranks that are actors of Ray's, and stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.horovod._absent import absent, refuse_unless_default
from ring_keras.horovod._ray_elastic import (
    ElasticRayExecutor,
    rank_variables,
    run_on_most,
)
from ring_keras.ray.rank_actors import Bundles, RankActors, results_of

__all__ = ["ElasticRayExecutor", "RayExecutor"]

_NO_ELASTIC = "It is for elastic jobs: give min_workers, too."
_NO_GPUS = "Elastic jobs run on CPUs: see docs/elastic.md."
_NO_PLACES = "Ranks of an elastic job come wherever Ray has room."
_NO_ACTORS = "Ranks of an elastic job come and go: use run()."
_NO_CALLBACKS = "Return what is to be known."


@dataclass
class _Settings:
    """Made by `RayExecutor.create_settings`."""

    timeout_s: float
    placement_group_timeout_s: float
    nics: Iterable[str] | None


class RayExecutor:
    """Runs functions as the ranks of a job, which are actors until `shutdown`.

    Ranks are numbered host by host. A function that calls `init()` finds its rank; the
    job goes on from one function to the next. When a function fails on a rank, that
    rank leaves the job, so that the others do not wait for it, and `init()` in a later
    function joins anew.

    With `min_workers` each `run` is an elastic job of its own, by
    `ring_keras.ray.run_elastic`: it goes on when some of its ranks are lost.

    Args:
        settings: Of `create_settings`.
        num_workers: How many ranks, on as few hosts as they fit on; or:
        num_hosts: how many hosts, each with as many ranks as the others.
        num_workers_per_host: How many ranks each of these hosts has.
        cpus_per_worker: How many of Ray's CPUs a rank takes.
        use_gpu: Whether a rank takes GPUs.
        gpus_per_worker: How many; 1 if not given.
        use_current_placement_group: Whether ranks go into the placement group in which
            this is called, if there is one.
        min_workers: The fewest ranks with which an elastic job begins, and goes on;
            `num_workers` then means nothing.
        max_workers: Up to so many; by default as many as the cluster has CPUs for when
            `run` begins.
        reset_limit: After so many changes another one ends the job.
        cooldown_range: Seconds until a lost process is replaced, at first and at most.
        elastic_timeout: Seconds for the ranks to meet after a change.
        override_discovery: Ignored: Ray finds the hosts.

    Raises:
        AbsentError: If an argument asks for what is not there.
        ValueError: If there is not one way to tell how many ranks there are, or GPUs
            are asked for without `use_gpu`.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | None = None,
    ) -> _Settings:
        """Settings for the constructor.

        Args:
            timeout_s: How long, in seconds, `init()` waits for the other ranks.
            ssh_identity_file: Ignored: nothing goes through ssh.
            ssh_str: Ignored.
            placement_group_timeout_s: How long `start` waits for Ray to have room.
            nics: The network interfaces to take.
        """
        return _Settings(timeout_s, placement_group_timeout_s, nics)

    def __init__(
        self,
        settings: _Settings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        self._settings = settings
        self._actors: RankActors | None = None
        self._env: dict[str, str] | None = None
        self._elastic: dict[str, Any] | None = None
        if min_workers is not None:
            refuse_unless_default("num_hosts", num_hosts, None, _NO_PLACES)
            refuse_unless_default("use_gpu", use_gpu, False, _NO_GPUS)
            refuse_unless_default("gpus_per_worker", gpus_per_worker, None, _NO_GPUS)
            self._elastic = {
                "min_workers": min_workers,
                "max_workers": max_workers,
                "cpus_per_worker": cpus_per_worker,
                "reset_limit": reset_limit,
                "cooldown_range": cooldown_range and tuple(cooldown_range),
                "elastic_timeout": elastic_timeout,
            }
            return
        for name, value in (
            ("max_workers", max_workers),
            ("reset_limit", reset_limit),
            ("cooldown_range", cooldown_range),
        ):
            refuse_unless_default(name, value, None, _NO_ELASTIC)
        if bool(num_workers) == bool(num_hosts):
            raise ValueError(
                "RayExecutor takes either num_workers or num_hosts. Received: "
                f"num_workers={num_workers}, num_hosts={num_hosts}"
            )
        if gpus_per_worker is not None and not (use_gpu and gpus_per_worker >= 1):
            raise ValueError(
                "gpus_per_worker is at least 1, and needs use_gpu=True. Received: "
                f"gpus_per_worker={gpus_per_worker}, use_gpu={use_gpu}"
            )
        self._bundles = Bundles(
            count=num_hosts or num_workers or 0,
            ranks=num_workers_per_host if num_hosts else 1,
            strategy="STRICT_SPREAD" if num_hosts else "PACK",
            cpus=cpus_per_worker,
            gpus=(gpus_per_worker or 1) if use_gpu else 0,
            into_current=use_current_placement_group,
        )

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the ranks.

        Args:
            executable_cls: Made in each, for the functions of `execute`.
            executable_args: Its arguments.
            executable_kwargs: Its keyword arguments.
            extra_env_vars: Variables that each rank gets.

        Raises:
            TimeoutError: If Ray has no room for them in time.
            RuntimeError: If they run already.
        """
        if self._env is not None:
            raise RuntimeError(
                "RayExecutor.start() was called before: shutdown() first."
            )
        settings = self._settings
        env = rank_variables(settings.timeout_s, settings.nics)
        env |= extra_env_vars or {}
        if self._elastic is not None:
            refuse_unless_default("executable_cls", executable_cls, None, _NO_ACTORS)
            self._env = env
            return
        self._actors = RankActors(
            self._bundles, env, settings.placement_group_timeout_s
        )
        self._env = env
        if executable_cls is not None:
            made = executable_cls, executable_args or (), executable_kwargs or {}
            results_of([rank.make.remote(*made) for rank in self._ranks()])

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls a function on every rank.

        Args:
            fn: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            callbacks: None.

        Returns:
            What it returned, by rank.

        Raises:
            Exception: What a rank raised, as Ray raises it; of several that of the one
                which took the others along.
        """
        refuse_unless_default("callbacks", callbacks, None, _NO_CALLBACKS)
        if self._elastic is not None:
            env = self._started()
            return run_on_most(fn, args or (), kwargs, env=env, **self._elastic)
        return results_of(self.run_remote(fn, args, kwargs))

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The same, without waiting: a reference to what each rank returns."""
        own_args, own_kwargs = args or (), kwargs or {}
        return self._call(lambda _: fn(*own_args, **own_kwargs))

    def execute(
        self,
        fn: Callable[[Any], Any],
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Calls a function on every rank with the object that `start` made there.

        Args, results and errors are those of `run`.
        """
        refuse_unless_default("callbacks", callbacks, None, _NO_CALLBACKS)
        return results_of(self._call(fn))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """The same on rank 0 alone; what it returned."""
        return results_of([self._ranks()[0].call.remote(fn)])[0]

    def shutdown(self) -> None:
        """Ends the ranks; without effect if there are none."""
        if self._actors is not None:
            self._actors.end()
        self._actors = self._env = None

    def _call(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [rank.call.remote(fn) for rank in self._ranks()]

    def _ranks(self) -> list[Any]:
        if self._elastic is not None:
            absent("RayExecutor's other methods with min_workers", _NO_ACTORS)
        self._started()
        assert self._actors is not None
        return self._actors.by_rank

    def _started(self) -> dict[str, str]:
        """The variables of the ranks."""
        if self._env is None:
            raise RuntimeError("RayExecutor has no ranks: call start() first.")
        return self._env
