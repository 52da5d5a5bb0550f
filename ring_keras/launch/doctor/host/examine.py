"""All checks of one host."""

from __future__ import annotations

from collections.abc import Callable

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host import (
    bandwidth,
    cores,
    descriptors,
    directory,
    encryption,
    governor,
    gpus,
    huge_pages,
    locked_memory,
    memfd,
    memory,
    numa,
    op_library,
    processes,
    settings,
    shm_mount,
    software,
)
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["examine"]

_CHECKS: tuple[Callable[[JobShape], list[Finding]], ...] = (
    software.check,
    op_library.check,
    settings.check,
    directory.check,
    encryption.check,
    memfd.check,
    shm_mount.check,
    huge_pages.check,
    descriptors.check,
    processes.check,
    locked_memory.check,
    memory.check,
    cores.check,
    governor.check,
    numa.check,
    gpus.check,
    bandwidth.check,
)


def examine(job: JobShape) -> list[Finding]:
    """What they have found; one that fails says so, and keeps no other from looking."""
    findings: list[Finding] = []
    for check in _CHECKS:
        try:
            findings += check(job)
        except Exception as error:
            name = check.__module__.rpartition(".")[2].replace("_", " ")
            text = f"could not be looked at: {type(error).__name__}: {error}"
            findings.append(Finding(name, State.WARNING, text))
    return findings
