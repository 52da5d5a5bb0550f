"""Tunes a job that all ranks have joined."""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ring_keras import _native
from ring_keras._version import __version__
from ring_keras.autotune import cache
from ring_keras.autotune.decision import (
    best_bucket_bytes,
    best_thresholds,
    beyond_measured,
)
from ring_keras.autotune.measurement import Stopwatch, times_by_size
from ring_keras.config import TUNING_SETTINGS, Config, ConfigError
from ring_keras.job.gathering import gather_texts

__all__ = ["tune"]

_BUDGET_S = 2.0
_THRESHOLD_SIZES = tuple(1 << power for power in range(10, 21, 2))
_BUCKET_SIZES = tuple(1 << power for power in range(20, 26))
_NEVER, _ALWAYS = 0, 1 << 40

# The thresholds that matter, in the order in which the algorithms take over from
# each other: where all ranks share memory; on hosts of which some have several ranks;
# anywhere else.
_SHARED = ("shared_flat_max_bytes",)
_HIERARCHICAL = ("direct_max_bytes",)
_REMOTE = (
    "direct_max_bytes",
    "recursive_doubling_max_bytes",
    "parts_max_bytes",
    "halving_max_bytes",
    "trees_max_bytes",
)
_PARTS_SIZE = 24
# As far as it goes unless it is set: tf_ops/collectives/tuning.h.
_HALVING = "halving_max_bytes"
_HALVING_BYTES_A_RANK = 128 << 10
_BUCKET = "bucket_size_bytes"


def tune(config: Config) -> int | None:
    """Finds the sizes that the user has not set: a collective, within `init()`.

    Rank 0 looks in its cache, else all measure; rank 0's choice holds. The engine
    gets its thresholds, rank 0's log all of it.

    Returns:
        The size of buckets in bytes; None if the user has set it, or if there is
        one rank only.
    """
    rank, size, *_ = _native.topology()
    if size == 1:
        return None
    start = time.monotonic()
    thresholds = _thresholds_that_matter(size)
    fixed = config.tuning()
    _check_same_bucket_size(config.bucket_size_bytes)
    if config.bucket_size_bytes is not None:
        fixed[_BUCKET] = config.bucket_size_bytes
    names = [name for name in (*thresholds, _BUCKET) if name not in fixed]
    key = _key(config, fixed)
    cached = cache.load(key, names) if rank == 0 else None
    choice = _of_rank_0(names, cached)
    if choice is None:
        measured = _measure(thresholds, fixed)
        choice = _of_rank_0(names, {name: measured[name] for name in names})
        assert choice is not None, "rank 0 has just measured"
        if rank == 0:
            cache.save(key, choice)
    known = fixed | choice
    tuning = _native.tuning()
    _native.set_tuning(tuning | {n: known[n] for n in TUNING_SETTINGS if n in known})
    if rank == 0:
        how = "measured in" if cached is None else "read from the cache in"
        settings = ", ".join(f"{name}={value}" for name, value in choice.items())
        _native.log(
            "info",
            f"autotune: {settings or 'everything is set'} "
            f"({how} {time.monotonic() - start:.2f} s)",
        )
    return choice.get(_BUCKET)


def _thresholds_that_matter(size: int) -> tuple[str, ...]:
    transports = {_native.transport_to(rank) for rank in range(size)}
    local_size = _native.topology()[3]
    own = np.array([not transports <= {"self", "shm"}, local_size], np.int64)
    remote, most_on_a_host = _native.allreduce(own, "max", "autotune/place").tolist()
    if not remote:
        # Two ranks have one algorithm.
        return _SHARED if size > 2 else ()
    if 1 < most_on_a_host < size:
        return _HIERARCHICAL
    # By parts, each rank would connect to each.
    return tuple(n for n in _REMOTE if n != "parts_max_bytes" or size <= _PARTS_SIZE)


def _check_same_bucket_size(own: int | None) -> None:
    """Else some ranks would measure, and others not. Thresholds are compared in C++.

    Raises:
        ConfigError: On every rank, if they differ.
    """
    gathered = _native.allgather(np.array([own or 0]), "autotune/bucket_size").tolist()
    for rank, theirs in enumerate(gathered):
        if theirs != gathered[0]:
            raise ConfigError(
                "[RK117] "
                "RING_KERAS_BUCKET_SIZE_BYTES must be the same on every rank: it is "
                f"{gathered[0] or 'unset'} on rank 0 and {theirs or 'unset'} on rank "
                f"{rank}."
            )


def _key(config: Config, fixed: Mapping[str, int]) -> dict[str, Any]:
    """What two jobs must have in common for one's settings to suit the other."""
    host = config.host_name or platform.node()
    cores = len(os.sched_getaffinity(0))
    ranks = gather_texts(f"{host}: {cores} x {_processor()}", "autotune/hosts")
    return {
        "ring_keras": __version__,
        "ranks": ranks,
        "transport": config.transport,
        "tcp_streams": config.tcp_streams,
        "interfaces": list(config.interfaces or ()),
        "set_by_user": dict(fixed),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            name, _, model = line.partition(":")
            if name.strip() == "model name":
                return model.strip()
    return platform.machine()


def _of_rank_0(
    names: list[str], settings: Mapping[str, int] | None
) -> dict[str, int] | None:
    """Rank 0's settings, on every rank: a collective."""
    values = [1, *(settings[name] for name in names)] if settings is not None else []
    sent = np.zeros(1 + len(names), np.int64)
    sent[: len(values)] = values
    found, *received = _native.broadcast(sent, 0, "autotune/choice").tolist()
    return dict(zip(names, received, strict=True)) if found else None


def _measure(thresholds: tuple[str, ...], fixed: Mapping[str, int]) -> dict[str, int]:
    """The best settings: a collective, with the same result on every rank."""
    stopwatch = Stopwatch(_BUDGET_S)
    found: dict[str, int] = dict(fixed)
    defaults = _native.tuning()
    if any(name not in fixed for name in thresholds):
        times = times_by_size(
            _THRESHOLD_SIZES,
            [
                functools.partial(_use_only, number, thresholds, defaults)
                for number in range(len(thresholds) + 1)
            ],
            stopwatch,
        )
        chosen = best_thresholds(times, [fixed.get(name) for name in thresholds])
        found |= zip(thresholds, chosen, strict=True)
        if _HALVING in thresholds and _HALVING not in fixed:
            usual = _HALVING_BYTES_A_RANK * _native.topology()[1]
            found[_HALVING] = beyond_measured(found[_HALVING], times[0], usual)
        _native.set_tuning(defaults | {name: found[name] for name in thresholds})
    if _BUCKET not in fixed:
        (by_size,) = times_by_size(_BUCKET_SIZES, [lambda: None], stopwatch)
        found[_BUCKET] = best_bucket_bytes(by_size)
    return found


def _use_only(
    number: int, thresholds: tuple[str, ...], defaults: Mapping[str, int | None]
) -> None:
    """Makes every allreduce use the algorithm that ends at threshold `number`."""
    limits = {
        name: _ALWAYS if place == number else _NEVER
        for place, name in enumerate(thresholds)
    }
    _native.set_tuning({**defaults, **limits})
