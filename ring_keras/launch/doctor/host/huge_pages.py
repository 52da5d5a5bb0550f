"""Whether shared memory may lie in huge pages, which the engine asks for."""

from __future__ import annotations

import re
from pathlib import Path

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import write_file
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_GRANTED = ("advise", "always", "within_size", "force")


def check(job: JobShape, switch: Path = _SWITCH) -> list[Finding]:
    """What the kernel does when it is asked for them (`madvise`) in shared memory."""
    try:
        found = re.search(r"\[(\w+)\]", switch.read_text())
    except OSError:
        text = "this kernel has none in shared memory"
        return [Finding("huge pages", State.NOT_APPLICABLE, text)]
    word = found[1] if found else "?"
    if word in _GRANTED:
        return [Finding("huge pages", State.OK, f"shared memory gets them ({word})")]
    return [
        Finding(
            "huge pages",
            State.WARNING,
            f"shared memory gets none ({word}), so large tensors cost more page faults",
            expected="advise, so that programs get them that ask, as ring_keras does",
            fix=write_file(switch, "advise"),
        )
    ]
