"""Horovod with gloo, in an environment of its own TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import PEERS_DIR, python_ranks
from benchmarks.program import Job, Program

__all__ = ["HOROVOD", "STARTUP"]

_PYTHON = PEERS_DIR / "horovod" / "bin" / "python"
_LAUNCHER = PEERS_DIR / "horovod" / "bin" / "horovodrun"


def _program(module: str) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        launcher = [str(_LAUNCHER), "--gloo", "--network-interfaces", "lo"]
        launcher += ["-np", str(job.size), "-H", f"localhost:{job.size}"]
        # Ranks that were paused must not take the others for dead.
        launcher += ["--gloo-timeout-seconds", "3600"]
        variables = {"TF_CPP_MIN_LOG_LEVEL": "2"}
        return [([*launcher, *python_ranks(_PYTHON, module, job)], variables)]

    # Its thread looks for work every millisecond. On one core its threads wait for
    # each other until the scheduler's next tick: 4 ms where it takes 1 to 3 unpinned.
    return Program("Horovod", [_PYTHON, _LAUNCHER], start, pause=True, pin=False)


HOROVOD = _program("horovod_tf")
STARTUP = _program("startup_horovod")
