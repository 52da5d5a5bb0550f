"""ring_keras itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.places import OWN_PYTHON, ROOT_DIR, python_ranks
from benchmarks.program import Job, Program

__all__ = ["ARRAYS", "STARTUP", "TENSORS", "of_checkout"]


def _program(name: str, module: str) -> Program:
    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        launcher = [str(OWN_PYTHON), "-m", "ring_keras.launch", "-np", str(job.size)]
        return [([*launcher, *python_ranks(OWN_PYTHON, module, job)], {})]

    return Program(name, [OWN_PYTHON], start)


ARRAYS = _program("ring_keras on arrays", "ring_arrays")
TENSORS = _program("ring_keras in TensorFlow", "ring_tensors")
STARTUP = _program("ring_keras", "startup_ring")


def of_checkout(program: Program, checkout: Path) -> Program:
    """The same with the `ring_keras` of another checkout, which is built in it."""

    def start(job: Job) -> list[tuple[Sequence[str], Mapping[str, str]]]:
        # `python -m` looks here first. What measures is the same for both.
        for package, place in (("ring_keras", checkout), ("benchmarks", ROOT_DIR)):
            (job.directory / package).symlink_to(place.resolve() / package)
        return [
            (["env", "-C", str(job.directory), *command], variables)
            for command, variables in program.start(job)
        ]

    return Program(
        f"{program.name} of {checkout}",
        [*program.requires, checkout / "ring_keras" / "_build_info.json"],
        start,
        program.pause,
        program.pin,
    )
