"""Training without any other rank: one process, or several that ignore each other."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.ranks.agent import Unsupported, answer
from benchmarks.ranks.models import Loop, custom_loop, fit_loop, train_operation
from benchmarks.ranks.tensors import limit_threads

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    limit_threads()

    def build(model: str, loop: str) -> Loop:
        if loop == "fit":
            return fit_loop(model, rank)
        if loop != "custom":
            raise Unsupported
        return custom_loop(model, rank)

    operations = {"train": train_operation(build)}
    answer(socket_path, rank, f"TensorFlow {tf.__version__}", operations)
