"""ring_keras."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.ranks.startup import Steps, fit_steps, import_tensorflow, serve_startup

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    def join() -> Callable[[], Steps]:
        import ring_keras as ring

        ring.init()
        return lambda: fit_steps(rank, distribute=ring.DistributedOptimizer)

    names = ["ring_keras", "tensorflow"]
    serve_startup(socket_path, rank, names, import_tensorflow, join)
