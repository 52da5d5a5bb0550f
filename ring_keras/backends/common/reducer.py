"""How an optimizer's gradients become those of all ranks."""

from __future__ import annotations

import abc
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.backends.common.buckets import plan_of
from ring_keras.backends.common.step import Step
from ring_keras.job.job import PerJob, current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["Options", "Reducer"]

# By process set, whose ranks alone count: optimizers have numbers, in the order in
# which a `fit` begins with them, or else in which they first reduce. Of two with
# gradients of the same shapes each meets its own.
_numbers: PerJob[defaultdict[int, Iterator[int]]] = PerJob(
    lambda: defaultdict(itertools.count)
)


@dataclass(frozen=True)
class Options:
    """See `DistributedOptimizer`, whose arguments these are."""

    op: ReduceOp
    process_set: ProcessSet
    bucket_size_bytes: int | None
    wire_dtype: str | None
    local_layers: tuple[Any, ...] = ()
    scale_local_gradients: bool = True

    def is_local(self, variable: Any) -> bool:
        """Whether each rank trains it for itself. Within a step, too."""
        return any(
            variable is weight
            for layer in self.local_layers
            for weight in layer.weights
        )


class Reducer(abc.ABC):
    """Reduces the gradients of one optimizer.

    Args:
        options: How.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._job: Any = None
        self._number = 0
        # With the variables, so that no others get their ids.
        self._plans: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}

    @abc.abstractmethod
    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], step: Step
    ) -> list[Any]:
        """The reduced gradients, bitwise equal on every rank; collective.

        Args:
            gradients: Dense, in host memory, one for each variable. What is a
                variable's own `grad` may be overwritten.
            variables: Keras's, the same on every rank, in the same order.
            step: In which they are applied.

        Raises:
            RankMismatchError: On every rank, if ranks train other variables, or one has
                failed.
            PeerLostError: If a rank has died or left.
            RingKerasError: If a gradient is not in host memory.
        """

    @abc.abstractmethod
    def shared(self, gradients: list[Any], step: Step) -> list[Any]:
        """Times this rank's part of all ranks' weights, and their number; collective.

        For gradients that are added up over several steps, whose ranks may have other
        numbers of examples in each. Their types stay.
        """

    @abc.abstractmethod
    def any_rank(self, here: Any) -> Any:
        """Whether it is so on a rank, as that a gradient has overflowed; collective."""

    def counts_alike(self, step: Step) -> bool:
        """Whether ranks have the same weight, whatever their examples."""
        return self.options.op is not ReduceOp.AVERAGE or step.adds_up

    def begin(self) -> str:
        """What the names of this optimizer's collectives begin with."""
        job = current_job()
        if job is not self._job:
            self._job = job
            self._number = next(_numbers.of(job)[self.options.process_set.key()])
            self._plans.clear()
        return f"keras/{self._number}"

    def plan(
        self, gradients: Sequence[Any], variables: Sequence[Any], op: ReduceOp
    ) -> int:
        """A number that the ranks have in common if they mean the same gradients."""
        key = (op, *map(id, variables), *(gradient.dtype for gradient in gradients))
        if key not in self._plans:
            lines = [
                f"{_name_of(variable)} {gradient.dtype} {list(gradient.shape)}"
                for variable, gradient in zip(variables, gradients, strict=True)
            ]
            self._plans[key] = plan_of([*lines, str(op)]), list(variables)
        return self._plans[key][0]


def _name_of(variable: Any) -> str:
    """Without the numbers that Keras gives to the second layer of a name, and later."""
    return re.sub(r"_\d+(?=/|$)", "", str(variable.path))
