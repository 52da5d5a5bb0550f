"""MPI, which may be what carries between hosts."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["start_mpi"]


def start_mpi(library: str) -> None:
    """Begins MPI in this process, if nobody has; returns when all its processes have.

    To be called before ranks that mpirun has started ask it for each other, as only one
    may ask, once: MPI itself, if it is there.

    Args:
        library: Its path; empty: the one that is loaded (mpi4py's), one that pip has
            installed, or the system's.
    """
    from ring_keras import _native

    _native.start_mpi(library, str(Path(sys.prefix) / "lib"))
