"""The environment that each rank gets."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from ring_keras.config import inherited_environment, variables
from ring_keras.launch.control_group import usable_cores
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


_HASH_SEED = "PYTHONHASHSEED"


def launchers_names() -> set[str]:
    """Variables that are for a launcher of ours to set."""
    names = {variable.name for variable in variables() if variable.set_by_launcher}
    return names - {"RING_KERAS_HOST_NAME"}  # A user may know better.


def environment_for_ranks() -> dict[str, str]:
    """This process's own; if it is a rank itself, without what makes it one."""
    dropped = launchers_names()
    return {k: v for k, v in inherited_environment().items() if k not in dropped}


def hash_seed(given: Mapping[str, str], secret: bytes | None = None) -> dict[str, str]:
    """Has `hash` of a text, and so the order of a set, be the same on all ranks.

    Args:
        given: What the user has set; a seed in it stands.
        secret: What all who ask for this job have; None: nobody else asks.
    """
    seed = given.get(_HASH_SEED)
    if not seed:
        drawn = secret or secrets.token_bytes()
        digest = hashlib.sha256(_HASH_SEED.encode() + drawn).digest()
        seed = str(int.from_bytes(digest[:4], "big") or 1)  # 0 would be no seed.
    return {_HASH_SEED: seed}


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
        # Each rank's TensorFlow would otherwise start a thread per core of the host.
        cores = usable_cores()
        added["TF_NUM_INTRAOP_THREADS"] = str(max(1, cores // size))
    if "PYTHONUNBUFFERED" not in inherited:
        # To Python a pipe is no terminal: lines would come late and in heaps.
        added["PYTHONUNBUFFERED"] = "1"
    added |= chosen
    if as_horovod:
        paths = added.get("PYTHONPATH", inherited.get("PYTHONPATH"))
        added["PYTHONPATH"] = os.pathsep.join(filter(None, [_AS_HOROVOD, paths]))
    return added


def terminal_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """What lets `breakpoint()` in a rank ask at this process's terminal, if any.

    Args:
        inherited: What the rank gets besides.
    """
    try:
        terminal = os.ttyname(0)
    except OSError:  # There is none.
        return {}
    variables = {"RING_KERAS_TERMINAL": terminal}
    if "PYTHONBREAKPOINT" not in inherited:
        variables["PYTHONBREAKPOINT"] = "ring_keras.breakpoint"
    return variables


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


def write_private(path: Path, text: str) -> None:
    """Writes a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
