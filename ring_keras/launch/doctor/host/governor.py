"""Whether the processors are kept at their lowest frequency."""

from __future__ import annotations

from pathlib import Path

from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import as_root
from ring_keras.launch.doctor.job_shape import JobShape

__all__ = ["check"]

_SYSTEM = Path("/sys/devices/system/cpu")
# With these drivers "powersave" is a hint to the processor, which raises its
# frequency all the same.
_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp")


def check(job: JobShape, system: Path = _SYSTEM) -> list[Finding]:
    """The governor of each processor."""
    slow = total = 0
    for directory in system.glob("cpu[0-9]*/cpufreq"):
        try:
            governor = (directory / "scaling_governor").read_text().strip()
            driver = (directory / "scaling_driver").read_text().strip()
        except OSError:
            continue
        total += 1
        slow += governor == "powersave" and driver not in _BY_HARDWARE
    if not total:
        text = "this machine, perhaps a virtual one, does not say"
        return [Finding("CPU frequency", State.NOT_APPLICABLE, text)]
    if not slow:
        return [Finding("CPU frequency", State.OK, "rises with the load")]
    return [
        Finding(
            "CPU frequency",
            State.WARNING,
            f"{slow} of {total} processors are kept at their lowest (powersave)",
            expected="a governor that raises it with the load",
            fix=as_root("cpupower frequency-set --governor performance"),
        )
    ]
