"""What all ranks say in the same words, of which one is enough."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["StartLines"]

# Where TensorFlow says so: of instructions that it could use, of oneDNN, of libraries
# for GPUs that are there or not, and of XLA. Only these: a warning about a step must
# not be missed because another rank had the same.
_SOURCES = b"|".join(
    map(
        re.escape,
        [
            b"computation_placer.cc",
            b"cpu_feature_guard.cc",
            b"cuda_blas.cc",
            b"cuda_diagnostics.cc",
            b"cuda_dnn.cc",
            b"cuda_driver.cc",
            b"cuda_executor.cc",
            b"cuda_fft.cc",
            b"cuda_platform.cc",
            b"cudart_stub.cc",
            b"device_compiler.h",
            b"dso_loader.cc",
            b"gpu_device.cc",
            b"port.cc",
            b"py_utils.cc",
            b"service.cc",
        ],
    )
)
_LOGGED = re.compile(
    # absl's way to begin a line, and that of TensorFlow until 2.18.
    rb"(?:[IWE]\d{4} [\d:.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+: [IWE]) "
    rb"(?:\S*/)?((?:(?:" + _SOURCES + rb"):\d+\]"
    # Of TensorFlow 2.21. The same file also logs what fails in a generator.
    rb"|generator_dataset_op\.cc:\d+\] Memory patch applied:) .*)"
)
_PLAIN = (
    b"WARNING: All log messages before absl::InitializeLog() is called",
    b"To enable the following instructions:",
)
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
# TensorFlow also logs the errors of collectives, which all ranks raise, and what node
# had them, before it raises them.
_ABORTS = re.compile(
    rb"W\d{4} [\d:.]+ +\d+ local_rendezvous\.cc:\d+\] "
    rb"(Local rendezvous is aborting with status: .*\b(?:CollectiveTimeout|CorruptData"
    rb"|NotInitialized|PeerLost|RankMismatch|RingKeras)Error: .*)"
)
# Python shows each once in a process, and the line that it is about below it.
_WARNING = re.compile(rb"\S.*:\d+: \w*Warning: ")
_MAX_REMEMBERED = 100
_OF_ABORT = (b"\t [[{{node ", b"Executing non-communication op <")


class StartLines:
    """Shows what TensorFlow says when it starts, and Python's warnings, of one rank.

    Of the first that says it. The same of what TensorFlow says of errors of ours.
    """

    def __init__(self) -> None:
        self._said_by: dict[bytes, int] = {}
        self._said_of_errors: dict[bytes, int] = {}
        self._warned: dict[bytes, int] = {}
        self._hides_abort: set[int] = set()
        self._hides_source: set[int] = set()

    def select(self, rank: int, lines: Sequence[bytes]) -> list[bytes]:
        """What to show of a rank's lines: all but those that another has said."""
        return [line for line in lines if self._is_shown(rank, line)]

    def _is_shown(self, rank: int, line: bytes) -> bool:
        if rank in self._hides_abort and line.startswith(_OF_ABORT):
            return False
        self._hides_abort.discard(rank)
        if rank in self._hides_source:
            self._hides_source.discard(rank)
            if line.startswith(b"  "):
                return False
        if _WARNING.match(line):
            if _is_first(self._warned, line, rank):
                return True
            self._hides_source.add(rank)
            return False
        if aborts := _ABORTS.match(line):
            if _is_first(self._said_of_errors, aborts[1], rank):
                return True
            self._hides_abort.add(rank)
            return False
        logged = _LOGGED.match(line)
        if logged is None and not line.startswith(_PLAIN):
            return True
        said = _ADDRESS.sub(b"", line if logged is None else logged[1])
        return self._said_by.setdefault(said, rank) == rank


def _is_first(said_by: dict[bytes, int], said: bytes, rank: int) -> bool:
    """Whether no other rank has said it of late."""
    first = said_by.setdefault(said, rank)
    while len(said_by) > _MAX_REMEMBERED:
        del said_by[next(iter(said_by))]
    return first == rank
