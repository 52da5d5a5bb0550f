"""What a membership is to JAX."""

from __future__ import annotations

import os

from ring_keras.backends.common.early_fits import watch_fits
from ring_keras.config import threads_of_rank
from ring_keras.job.job import Job
from ring_keras.lifecycle.side import Side

__all__ = ["JaxSide"]

# How many threads its CPU client has, if it has none yet.
_THREADS = "PJRT_NPROC"


class JaxSide(Side):
    """JAX is left to load when it is used."""

    def load(self) -> None:
        """JAX would start a thread for each core of the host, on each rank."""
        # What the user has said, JAX does not read.
        threads = os.environ.get("OMP_NUM_THREADS") or str(threads_of_rank() or "")
        if threads.isdecimal():
            os.environ.setdefault(_THREADS, threads)

    def begin(self, job: Job) -> None:
        """Calls of `fit` may make the first thing that is distributed."""
        watch_fits()
