"""Gradients of matrices, reduced as products of two thin ones: PowerSGD.

After Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization" (2019). With gradients M of n x m on the
ranks, and a matrix R of m x r that all have in common, a step is

    L = orthonormal basis of the columns of mean(M R)
    R = mean(M' L)
    result = L R'

so r (n + m) numbers travel in place of n m. A rank adds what its M has in addition to
the result to its next one: nothing is lost, it comes later. R is where the next step
begins. A step that has inf or nan anywhere changes none of that, as loss scaling skips
it.

The mean is of all ranks alike: a rank that counts by its examples multiplies its
gradient beforehand. So what ranks still owe adds up, whatever each counts in other
steps.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.job.process_set import generation
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.arguments import Factor
from ring_keras.ops.grouped_allreduce import grouped_allreduce
from ring_keras.optimizers.agreed_plans import source_name
from ring_keras.optimizers.buckets import Bucket, BucketPlan
from ring_keras.optimizers.gradient_values import Gradient, dense
from ring_keras.optimizers.reduction_check import ReductionCheck
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["LowRank", "LowRankStep"]

_Key: TypeAlias = tuple[Hashable, tuple[int, int]]


class _Memory:
    """What a rank keeps of one variable's gradients.

    Attributes:
        owed: n x m: what its gradients had in addition to the results so far, without
            the loss scale.
        right: m x r, the same on every rank.
    """

    def __init__(self, shape: tuple[int, int], rank: int, dtype: tf.DType) -> None:
        rows, columns = shape
        # Any common matrix will do, but for one that happens to suit no gradient.
        numbers = np.random.default_rng([rows, columns, rank])
        self._start = numbers.standard_normal((columns, rank))
        with tf.init_scope():  # Not in the graph of the function that is being traced.
            self.owed = tf.Variable(tf.zeros(shape, dtype), trainable=False)
            self.right = tf.Variable(tf.cast(self._start, dtype), trainable=False)

    def basis(self) -> tf.Tensor:
        """Orthonormal columns, of which those begin anew that have become 0."""
        right = self.right.read_value()
        is_zero = tf.reduce_all(right == 0, axis=0, keepdims=True)
        return _orthonormal(tf.where(is_zero, tf.cast(self._start, right.dtype), right))

    def clear(self) -> None:
        """As if there had been no step."""
        with tf.init_scope():
            self.owed.assign(tf.zeros_like(self.owed))
            self.right.assign(tf.cast(self._start, self.right.dtype))


@dataclass(frozen=True)
class _Matrix:
    """One gradient of a step, and what is owed with it.

    Attributes:
        memory: Of its variable.
        name: Of that.
        values: n x m.
        like: The gradient, for its shape and dtype.
    """

    memory: _Memory
    name: str
    values: tf.Tensor
    like: tf.Tensor


class LowRank:
    """What is kept for the gradients of one optimizer, or of the tapes of a model.

    Args:
        options: What the user has chosen, with `low_rank`.
    """

    def __init__(self, options: ReductionOptions) -> None:
        assert options.low_rank is not None
        self._options = options
        self._rank = options.low_rank.rank
        self._generation = generation()
        self._memories: dict[_Key, _Memory] = {}

    def forget(self) -> None:
        """Begins anew: what was owed belongs to other weights than there are now."""
        for memory in self._memories.values():
            memory.clear()

    def begin(
        self,
        gradients: Sequence[Gradient],
        sources: Sequence[Any],
        loss_scale: Factor,
    ) -> "LowRankStep":
        """Starts a step.

        Args:
            gradients: In the order of their variables; None is left alone, and so is
                what would not be smaller, and what another one of a variable is.
            sources: Their variables. Of what is none, such as a tensor, a gradient
                travels as it is: there would be no next one.
            loss_scale: What the gradients have been multiplied by.
        """
        if self._generation != generation():
            # Who has left owes no more, and who has come has nothing in common yet.
            self._generation = generation()
            self.forget()
        if self._options.sparse_as_dense:
            gradients = [dense(gradient) for gradient in gradients]
        matrices: dict[int, _Matrix] = {}
        seen = set()  # Of one variable there is one matrix to owe.
        for index, (gradient, source) in enumerate(
            zip(gradients, sources, strict=True)
        ):
            shape = self._shape(gradient) if internals.is_variable(source) else None
            if shape is not None and internals.variable_key(source) not in seen:
                seen.add(internals.variable_key(source))
                memory = self._memory(gradient, source, shape)
                owed = memory.owed * tf.cast(loss_scale, memory.owed.dtype)
                values = tf.cast(tf.reshape(gradient, shape), owed.dtype) + owed
                name = source_name(source)
                matrices[index] = _Matrix(memory, name, values, gradient)
        return LowRankStep(self._options, gradients, matrices, loss_scale)

    def _shape(self, gradient: Gradient) -> tuple[int, int] | None:
        """Rows and columns of its matrix; None where there is nothing to gain."""
        if not isinstance(gradient, tf.Tensor) or not gradient.dtype.is_floating:
            return None
        if not gradient.shape.is_fully_defined() or gradient.shape.rank < 2:
            return None
        *leading, columns = gradient.shape.as_list()
        rows = math.prod(leading)
        thin = self._rank * (rows + columns)
        return (rows, columns) if 2 * thin < rows * columns else None

    def _memory(
        self, gradient: tf.Tensor, source: Any, shape: tuple[int, int]
    ) -> _Memory:
        key = internals.variable_key(source), shape
        if key not in self._memories:
            dtype = gradient.dtype if gradient.dtype == tf.float64 else tf.float32
            self._memories[key] = _Memory(shape, self._rank, dtype)
        return self._memories[key]


class LowRankStep:
    """The gradients of one step, on the way to what they are approximated by.

    Attributes:
        shared: What the ranks reduce first: M R where there is a matrix, and all else
            as it is.
    """

    def __init__(
        self,
        options: ReductionOptions,
        gradients: Sequence[Gradient],
        matrices: dict[int, _Matrix],
        loss_scale: Factor,
    ) -> None:
        self._options = options
        self._matrices = matrices
        self._loss_scale = loss_scale
        self.shared: list[Gradient] = list(gradients)
        for index, matrix in matrices.items():
            self.shared[index] = tf.matmul(matrix.values, matrix.memory.basis())

    def finish(self, reduced: list[Gradient], factor: float) -> None:
        """Puts the results into `reduced`; a collective.

        Args:
            reduced: What has come of `shared`; of matrices up to a factor.
            factor: Multiplies the results.
        """
        if not self._matrices:
            return
        lefts = {index: _orthonormal(reduced[index]) for index in self._matrices}
        rights, count = self._sums(
            {
                index: tf.matmul(matrix.values, lefts[index], transpose_a=True)
                for index, matrix in self._matrices.items()
            }
        )
        if self._options.op is not ReduceOp.SUM:
            rights = {
                index: total / tf.cast(count, total.dtype)
                for index, total in rights.items()
            }
            count = tf.ones([])
        results = {
            index: tf.matmul(lefts[index], right, transpose_b=True)
            for index, right in rights.items()
        }
        for index, result in results.items():
            like = self._matrices[index].like
            shaped = tf.reshape(result * factor, like.shape)
            reduced[index] = tf.cast(shaped, like.dtype)
        # Of 16 bits, what the ranks have come to may be too large.
        short = [reduced[i] for i in results if self._matrices[i].like.dtype.size < 4]
        others = [one for i, one in enumerate(reduced) if i not in results]
        finite = self._are_finite([*rights.values(), *short, *others])
        for index, matrix in self._matrices.items():
            own = results[index] / tf.cast(count, results[index].dtype)
            self._keep(matrix, rights[index], own, finite)

    def _sums(
        self, tensors: dict[int, tf.Tensor]
    ) -> tuple[dict[int, tf.Tensor], tf.Tensor]:
        """Over all ranks, of tensors by the positions of their gradients.

        And how many ranks that were: those in `join` bring nothing.
        """
        options = replace(self._options, op=ReduceOp.SUM, gradient_predivide_factor=1.0)
        values = [*tensors.values(), tf.ones([])]
        bucket = Bucket(tuple(range(len(values))), "", 0)
        check = ReductionCheck.if_wanted(options, values, BucketPlan((), (bucket,)))
        sums = grouped_allreduce(
            values,
            options.op,
            name="gradients/low_rank",
            process_set=options.process_set,
        )
        if check is not None:
            names = [self._matrices[index].name for index in tensors]
            sums = check.checked(sums, dict(enumerate([*names, "count"])))
        *sums, count = sums
        return dict(zip(tensors, sums, strict=True)), count

    def _are_finite(self, gradients: Sequence[Gradient]) -> tf.Tensor:
        """The same on all ranks; a collective where some gradients are a rank's own."""
        finite = tf.reduce_all(
            [
                tf.reduce_all(tf.math.is_finite(tensor))
                for gradient in gradients
                if gradient is not None
                for tensor in [getattr(gradient, "values", gradient)]
                if tensor.dtype.is_floating
            ]
        )
        if not self._options.keeps_local:
            return finite
        with tf.device("CPU:0"):
            return allreduce(
                finite,
                ReduceOp.MIN,
                name="gradients/low_rank/finite",
                process_set=self._options.process_set,
            )

    def _keep(
        self, matrix: _Matrix, right: tf.Tensor, result: tf.Tensor, finite: tf.Tensor
    ) -> None:
        """What this rank owes now, where R begins; nothing new if the step is none.

        Args:
            matrix: What it had.
            right: R.
            result: What has come of it for each rank.
            finite: Whether all gradients of all ranks are.
        """
        memory = matrix.memory
        owed = (matrix.values - result) / tf.cast(self._loss_scale, result.dtype)
        memory.owed.assign(tf.where(finite, owed, memory.owed))
        memory.right.assign(tf.where(finite, right, memory.right))


def _orthonormal(columns: tf.Tensor) -> tf.Tensor:
    """As many columns of length 1, at right angles, that span what those span."""
    basis, _ = tf.linalg.qr(columns)
    return basis
