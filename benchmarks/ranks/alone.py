"""Training without any package that distributes: 1 process, or several independent."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.ranks.agent import answer
from benchmarks.ranks.models import alone, train_operations
from benchmarks.ranks.tensors import limit_threads

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    limit_threads()
    operations = {"train_alone": train_operations(alone(rank))["train"]}
    answer(socket_path, rank, f"TensorFlow {tf.__version__}", operations)
