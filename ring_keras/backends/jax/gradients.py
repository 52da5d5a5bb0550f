"""The gradients that an optimizer applies: the ranks' average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ring_keras.backends.common.buckets import buckets_of
from ring_keras.backends.common.reducer import Options, Reducer
from ring_keras.backends.common.step import Step
from ring_keras.errors import translated
from ring_keras.jax import calls
from ring_keras.job.job import PerJob, current_job
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["JaxReducer"]


class JaxReducer(Reducer):
    """By calls in the step that JAX compiles, or in a computation of their own."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._computations: PerJob[dict[tuple[Any, ...], Any]] = PerJob(dict)

    def reduce(  # noqa: D102  As in Reducer.
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[Any]:
        name = self.begin()
        op = step.op(self.options.op)
        plan = self.plan(gradients, variables, op)
        buckets = [
            bucket
            for bucket_of_any in buckets_of(
                range(len(gradients)),
                limit=self.options.bucket_size_bytes,
                nbytes_of=lambda i: gradients[i].size * gradients[i].dtype.itemsize,
            )
            for bucket in _by_dtype(bucket_of_any, gradients)
        ]
        communicator_id = self.options.process_set.communicator_id()

        def reduced(given: list[Any], weight: Any) -> list[Any]:
            started = []
            for number, bucket in enumerate(buckets):
                arrays = [given[i] for i in bucket]
                is_float32 = arrays[0].dtype == jnp.float32
                started.append(
                    calls.start(
                        arrays,
                        op=op.value,
                        name=f"{name}/{number}",
                        communicator=communicator_id,
                        weight=weight,
                        wire_dtype=self.options.wire_dtype if is_float32 else None,
                        # What a rank that fails gives up, whose next bucket would
                        # else meet the others' of the step before.
                        step="continues" if number else "begins",
                        plan=plan,
                        wait_follows=number == len(buckets) - 1,
                    )
                )
            result = list(given)
            for bucket, of_start in zip(buckets, started, strict=True):
                for i, array in zip(bucket, calls.wait(of_start), strict=True):
                    result[i] = array
            return result

        weight = step.weight if op is ReduceOp.AVERAGE else 1.0
        key = (name, plan, communicator_id)
        return self._computed(reduced, key, list(gradients), weight)

    def shared(  # noqa: D102  As in Reducer.
        self, gradients: list[Any], step: Step
    ) -> list[Any]:
        if self.counts_alike(step):
            return gradients
        weight = jnp.asarray(step.weight, jnp.float32).reshape(())
        total = self._reduce_one(weight, ReduceOp.SUM, "weight")
        size = self.options.process_set.size()
        share = jnp.where(total > 0, weight * size / jnp.maximum(total, 1e-30), 0.0)
        return [(gradient * share).astype(gradient.dtype) for gradient in gradients]

    def any_rank(self, here: Any) -> Any:  # noqa: D102  As in Reducer.
        flag = jnp.asarray(here, jnp.int32).reshape(())
        return self._reduce_one(flag, ReduceOp.MAX, "any").astype(bool)

    def _reduce_one(self, value: Any, op: ReduceOp, what: str) -> Any:
        name = f"{self.begin()}/{what}"
        communicator_id = self.options.process_set.communicator_id()

        def reduced(given: list[Any], _: Any) -> list[Any]:
            return calls.run(
                "allreduce",
                given,
                op=op.value,
                name=name,
                communicator=communicator_id,
                step="begins",
            )

        return self._computed(reduced, (name, communicator_id), [value], 1.0)[0]

    def _computed(
        self, function: Any, key: tuple[Any, ...], arrays: list[Any], weight: Any
    ) -> list[Any]:
        """What a function of arrays and a weight gives, as one computation.

        Halves of a collective share memory, so they must be in one; as are all calls
        of a step that is compiled.

        Args:
            function: It does the same for the same key.
            key: What it depends on but its arguments.
            arrays: Its first argument.
            weight: Its second one, a number or an array.
        """
        if any(isinstance(one, jax.core.Tracer) for one in (*arrays, weight)):
            traced: list[Any] = function(arrays, weight)
            return traced
        computations = self._computations.of(current_job())
        if key not in computations:
            computations[key] = jax.jit(function)
        with translated():
            result: list[Any] = jax.block_until_ready(
                computations[key](arrays, jnp.float32(weight))
            )
        return result


def _by_dtype(bucket: Sequence[int], gradients: Sequence[Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for i in bucket:
        groups.setdefault(gradients[i].dtype, []).append(i)
    return list(groups.values())
