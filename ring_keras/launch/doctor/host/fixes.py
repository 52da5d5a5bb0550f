"""Commands that fix what is set outside of this process."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["as_root", "in_container", "raise_limit", "write_file"]

_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
# Of linux/capability.h.
_SYS_ADMIN, _SYS_RESOURCE = 21, 24


def in_container(capability: int = _SYS_ADMIN) -> bool:
    """Whether Docker or Podman has started this, and its limits are set from outside.

    A privileged container's root has the capability to set them inside.
    """
    return any(mark.exists() for mark in _MARKS) and not _has(capability)


def _has(capability: int) -> bool:
    found = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    return found is not None and bool(int(found[1], 16) >> capability & 1)


def as_root(command: str) -> str:
    """The command for whoever has asked, who may not be root."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def write_file(path: Path | str, text: str) -> str:
    """Writes a file of the kernel's."""
    if os.geteuid() == 0:
        return f"echo {text} > {path}"
    return f"echo {text} | sudo tee {path}"


def raise_limit(name: str, value: str, job: JobShape) -> str:
    """Raises a limit that a process inherits.

    Args:
        name: As `prlimit`, Docker and limits.conf have it, such as `nofile`.
        value: A number, or `unlimited`.
        job: On one host the shell from which it was started can be helped; on several,
            logins.
    """
    if in_container(_SYS_RESOURCE):
        number = "-1" if value == "unlimited" else value
        return f"docker run --ulimit {name}={number}:{number} ..."
    if job.hosts == 1:
        return as_root(f"prlimit --pid $$ --{name}={value}:{value}")
    path = f"/etc/security/limits.d/ring_keras-{name}.conf"
    return write_file(path, f"'* - {name} {value}'")
