"""Allreduce of buffers, from 4 bytes to 256 MiB."""

from __future__ import annotations

from benchmarks.cases import Column, Row, Section, Target
from benchmarks.peers.limit import LIMIT
from benchmarks.peers.mpi import INTEL_MPI, MPICH, OPEN_MPI
from benchmarks.peers.oneccl import ONECCL
from benchmarks.peers.ring_keras import ARRAYS
from benchmarks.peers.torch_gloo import TORCH

__all__ = ["collectives"]

_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = {
    "4 B": 4,
    "1 KiB": _KIB,
    "64 KiB": 64 * _KIB,
    "1 MiB": _MIB,
    "16 MiB": 16 * _MIB,
    "64 MiB": 64 * _MIB,
    "256 MiB": 256 * _MIB,
}

_OURS = "ring_keras"
_OURS_SHARED = "ring_keras, shared buffers"
_PREPARED = "ring_keras, prepared"
_PREPARED_SHARED = "ring_keras, prepared, shared buffers"
_MPI = ["Intel MPI", "Open MPI", "MPICH"]
_CHUNKED = [f"{name}, 1 MB at a time" for name in _MPI]
_LIMITS_SHARED = ["limit: shared buffers"]

_OUR_ROWS = [
    Row(_OURS, ARRAYS, "allreduce"),
    Row(_OURS_SHARED, ARRAYS, "allreduce memory=shared"),
    Row(_PREPARED, ARRAYS, "allreduce call=prepared"),
    Row(_PREPARED_SHARED, ARRAYS, "allreduce call=prepared memory=shared"),
]
_MPI_ROWS = [
    Row(name, program, "allreduce")
    for name, program in zip(_MPI, [INTEL_MPI, OPEN_MPI, MPICH], strict=True)
]
_CHUNKED_ROWS = [
    Row(
        f"{row.title}, 1 MB at a time",
        row.program,
        "allreduce chunk_nbytes=1000000",
        _MIB,
    )
    for row in _MPI_ROWS
]
_ONECCL_ROW = Row("oneCCL", ONECCL, "allreduce")
_TORCH_ROW = Row("torch gloo", TORCH, "allreduce")
_LIMIT_ROWS = [
    Row("limit: private, staged", LIMIT, "allreduce algorithm=staged"),
    Row("limit: private, in parts", LIMIT, "allreduce algorithm=parts"),
    Row(_LIMITS_SHARED[0], LIMIT, "allreduce algorithm=shared"),
]

_BEST = [*_MPI, "oneCCL", "torch gloo"]
_TWO_RANK_TARGETS = [
    Target(["4 B", "1 KiB", "64 KiB"], _OURS, _BEST, 0.8),
    Target(["4 B", "1 KiB", "64 KiB"], _PREPARED, _BEST, 0.8),
    Target(["4 B", "1 KiB"], _OURS, ["oneCCL"], 3),
    Target(["1 MiB", "16 MiB", "64 MiB"], _OURS, [*_BEST, *_CHUNKED], 1),
    Target(["64 MiB", "256 MiB"], _OURS, ["oneCCL"], 1.5),
    Target(["256 MiB"], _OURS, _CHUNKED, 1),
    Target(
        ["64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB"],
        _OURS_SHARED,
        _LIMITS_SHARED,
        0.6,
    ),
    Target(["64 KiB"], _PREPARED_SHARED, _LIMITS_SHARED, 0.6),
]


def collectives(quick: bool) -> list[Section]:
    """Two ranks; then, if not `quick`, four, and 16-bit floats."""
    if quick:
        return [
            Section(
                "Allreduce of float32 arrays, 2 ranks",
                2,
                [
                    *_OUR_ROWS,
                    *_MPI_ROWS[:2],
                    *_CHUNKED_ROWS[:2],
                    _ONECCL_ROW,
                    *_LIMIT_ROWS,
                ],
                _columns("4 B", "1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"),
                _TWO_RANK_TARGETS,
            )
        ]
    everyone = [*_MPI_ROWS, *_CHUNKED_ROWS, _ONECCL_ROW, _TORCH_ROW]
    return [
        Section(
            "Allreduce of float32 arrays, 2 ranks",
            2,
            [*_OUR_ROWS, *everyone, *_LIMIT_ROWS],
            _columns(*_SIZES),
            _TWO_RANK_TARGETS,
        ),
        Section(
            "Allreduce of float32 arrays, 4 ranks",
            4,
            [*_OUR_ROWS, *everyone],
            _columns("4 B", "64 KiB", "1 MiB", "16 MiB", "64 MiB"),
            [Target(["1 MiB", "64 MiB"], _OURS, _BEST, 1.2)],
        ),
        *(
            Section(
                f"Allreduce of {dtype} arrays, 2 ranks",
                2,
                [*_OUR_ROWS, _ONECCL_ROW, _TORCH_ROW],
                _columns("64 KiB", "1 MiB", "64 MiB", dtype=dtype),
            )
            for dtype in ("bfloat16", "float16")
        ),
    ]


def _columns(*titles: str, dtype: str = "float32") -> list[Column]:
    return [
        Column(title, f"nbytes={_SIZES[title]} dtype={dtype}", _SIZES[title])
        for title in titles
    ]
