"""Allreduce through a package's TensorFlow ops, inside tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks.ranks.agent import Operation, Request, read_shapes

__all__ = ["Reduce", "limit_threads", "tensor_operations"]

# Emits the ops that sum tensors over the ranks.
Reduce = Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]


def limit_threads() -> None:
    """One thread that computes, as a rank has one core."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def tensor_operations(rank: int, size: int, reduce: Reduce) -> dict[str, Operation]:
    """The operations on tensors, for a package whose ops `reduce` emits."""
    total = size * (size + 1) // 2

    def allreduce(request: Request) -> list[float]:
        return measure(request, [one_shape(request)], reduce, total)

    def identity(request: Request) -> list[float]:
        # An Identity would be optimized away.
        def copy(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            return [tf.raw_ops.Snapshot(input=tensor) for tensor in tensors]

        return measure(request, [one_shape(request)], copy, rank + 1)

    def gradients(request: Request) -> list[float]:
        return measure(request, read_shapes(request.text("shapes")), reduce, total)

    def one_shape(request: Request) -> tuple[int, ...]:
        dtype = tf.as_dtype(request.text("dtype", "float32"))
        return (request.number("nbytes") // dtype.size,)

    def measure(
        request: Request,
        shapes: Sequence[tuple[int, ...]],
        compute: Reduce,
        expected: int,
    ) -> list[float]:
        dtype = tf.as_dtype(request.text("dtype", "float32"))
        tensors = [tf.cast(tf.fill(shape, rank + 1), dtype) for shape in shapes]

        @tf.function  # type: ignore[untyped-decorator]
        def step() -> tf.Tensor:
            reduced = compute(tensors)
            # Copies of a few numbers: what is not used might not be computed.
            ends = [tf.reshape(tensor, [-1])[-1] for tensor in reduced]
            return tf.stack(ends)

        sums = step().numpy().astype("float32")
        if not (sums == expected).all():
            raise ValueError(f"Sums must be {expected}. Received: {sums}")
        return request.time(step)

    return {"allreduce": allreduce, "identity": identity, "gradients": gradients}
