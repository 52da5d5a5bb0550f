"""How many ranks an elastic job on an engine has, and when it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ElasticSettings", "elastic_settings"]


@dataclass(frozen=True)
class ElasticSettings:
    """Made by `elastic_settings`.

    Attributes:
        min_workers: The fewest with which the job begins and goes on.
        max_workers: Up to so many as the engine has room for.
        cpus_per_worker: Cores that a rank takes.
        env: Variables that each rank gets.
        options: More for ringrun.
    """

    min_workers: int
    max_workers: int
    cpus_per_worker: int
    env: Mapping[str, str]
    options: Sequence[str]

    def environment(self) -> dict[str, str]:
        """Of ringrun, and of each rank."""
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.cpus_per_worker),
            "RING_KERAS_DEVICE": "cpu",
            **self.env,
        }


def elastic_settings(
    *,
    min_workers: int,
    max_workers: int | None,
    cpus_per_worker: int,
    env: Mapping[str, str] | None,
    elastic_timeout: float,
    reset_limit: int | None,
    cooldown_range: tuple[float, float] | None,
) -> ElasticSettings:
    """The settings, by the names that users know.

    Raises:
        ValueError: If a number makes no sense.
    """
    max_workers = min_workers if max_workers is None else max_workers
    if not 1 <= min_workers <= max_workers or cpus_per_worker < 1:
        raise ValueError(
            "A job has at least one worker, and min_workers <= max_workers; each takes "
            f"at least one CPU. Received: min_workers={min_workers}, "
            f"max_workers={max_workers}, cpus_per_worker={cpus_per_worker}"
        )
    cooldown = cooldown_range or (1.0, 60.0)
    if (
        not 0 < elastic_timeout < math.inf
        or (reset_limit is not None and reset_limit < 0)
        or not 0 <= cooldown[0] <= cooldown[1] < math.inf
    ):
        raise ValueError(
            "Times are finite, elastic_timeout is above 0, and reset_limit not below; "
            "cooldown_range has the shorter one first. Received: elastic_timeout="
            f"{elastic_timeout}, reset_limit={reset_limit}, "
            f"cooldown_range={cooldown_range}"
        )
    options = ["--elastic-timeout", f"{elastic_timeout:g}"]
    if reset_limit is not None:
        options += ["--reset-limit", str(reset_limit)]
    words = (f"{seconds:g}" for seconds in cooldown)
    options += ["--blacklist-cooldown-range", *words]
    return ElasticSettings(
        min_workers, max_workers, cpus_per_worker, dict(env or {}), options
    )
