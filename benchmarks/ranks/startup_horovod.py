"""Horovod, on its own TensorFlow, with Keras 2."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.ranks.startup import Steps, fit_steps, import_tensorflow, serve_startup

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    def join() -> Callable[[], Steps]:
        import horovod.tensorflow.keras as hvd

        hvd.init()
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        return lambda: fit_steps(
            rank, distribute=hvd.DistributedOptimizer, callbacks=[start]
        )

    names = ["horovod", "tensorflow"]
    serve_startup(socket_path, rank, names, import_tensorflow, join)
