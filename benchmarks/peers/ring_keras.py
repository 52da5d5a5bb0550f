"""ring_keras itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.places import OWN_PYTHON, python_ranks
from benchmarks.program import Job, Program

__all__ = ["ARRAYS", "TENSORS"]


def _program(name: str, module: str) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        launcher = [str(OWN_PYTHON), "-m", "ring_keras.launch", "-np", str(job.size)]
        return [([*launcher, *python_ranks(OWN_PYTHON, module, job)], {})]

    return Program(name, [OWN_PYTHON], start)


ARRAYS = _program("ring_keras on arrays", "ring_arrays")
TENSORS = _program("ring_keras in TensorFlow", "ring_tensors")
