"""The environment that each rank gets."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ring_keras.launch.places import Place

# Either one says that the user has divided the cores already.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")

# Holds a package `horovod` which says what ring_keras.horovod is.
_AS_HOROVOD = str(Path(__file__).parent.parent / "horovod" / "as_horovod")

# What belongs to a host, or to somebody's login on it, and means nothing, or
# something else, on another.
_OF_A_HOST = re.compile(
    "DISPLAY|HOME|HOST|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|RING_KERAS_HOST_NAME|SHELL|"
    "SHLVL|TMPDIR|USER|XAUTHORITY|_|(DBUS|SSH|XDG)_.*"
)

# What Slurm says to a task, and which GPUs it gives to it.
_OF_A_TASK = re.compile("SLURMD?_.*|(CUDA|ROCR|ZE)_(VISIBLE_DEVICES|AFFINITY_MASK)")


def host_environment(
    own: Mapping[str, str], launchers: Mapping[str, str]
) -> dict[str, str]:
    """What ranks on another host inherit.

    Args:
        own: Of a login there, or of a task that Slurm has started there.
        launchers: Of ringrun; it wins, but for what belongs to its host or task.
    """
    is_task = "SLURM_STEP_ID" in own
    shared = {
        name: value
        for name, value in launchers.items()
        if not _OF_A_HOST.fullmatch(name)
        and not (is_task and name in own and _OF_A_TASK.fullmatch(name))
    }
    return {**own, **shared}


def added_variables(
    *,
    size: int,
    inherited: Mapping[str, str],
    chosen: Mapping[str, str],
    as_horovod: bool = False,
) -> dict[str, str]:
    """What every rank gets on top of what ringrun inherited.

    Args:
        size: Ranks on this machine.
        inherited: ringrun's own environment.
        chosen: What ringrun's options say; this always wins.
        as_horovod: Whether `import horovod` finds `ring_keras.horovod`.
    """
    added: dict[str, str] = {}
    if not any(name in inherited or name in chosen for name in _THREAD_VARIABLES):
        # Each rank's TensorFlow would otherwise start a thread per core.
        cores = len(os.sched_getaffinity(0))
        added["TF_NUM_INTRAOP_THREADS"] = str(max(1, cores // size))
    if "PYTHONUNBUFFERED" not in inherited:
        # To Python a pipe is no terminal: lines would come late and in heaps.
        added["PYTHONUNBUFFERED"] = "1"
    added |= chosen
    if as_horovod:
        paths = added.get("PYTHONPATH", inherited.get("PYTHONPATH"))
        added["PYTHONPATH"] = os.pathsep.join(filter(None, [_AS_HOROVOD, paths]))
    return added


def job_variables(
    place: Place,
    *,
    store_address: str,
    token_file: Path | str,
    generation: int,
    report_pipe: Path | None = None,
) -> dict[str, str]:
    """What makes a process one rank of a job.

    Scripts written for Horovod read its variables, so each rank gets those too.
    """
    numbers = dataclasses.asdict(place)
    reports = (
        {} if report_pipe is None else {"RING_KERAS_REPORT_PIPE": str(report_pipe)}
    )
    return {
        f"HOROVOD_{name.upper()}": str(value) for name, value in numbers.items()
    } | {
        "RING_KERAS_RANK": str(place.rank),
        "RING_KERAS_SIZE": str(place.size),
        "RING_KERAS_STORE_ADDRESS": store_address,
        "RING_KERAS_TOKEN_FILE": str(token_file),
        "RING_KERAS_GENERATION": str(generation),
        **reports,
    }
