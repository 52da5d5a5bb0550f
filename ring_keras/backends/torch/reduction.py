"""One update's gradients on their way: bucket by bucket, in one order on all ranks.

A bucket may begin as soon as backward has made its gradients, if those before it have
begun. Which buckets there are is known from the update before. A rank whose backward
makes other gradients than before begins the rest when all are there, under a plan
that tells the ranks apart.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ring_keras import _native
from ring_keras.backends.common.buckets import buckets_of
from ring_keras.backends.common.reducer import Options
from ring_keras.backends.torch.arrays import array_of
from ring_keras.errors import RingKerasError
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["EarlyReduction", "Reduction", "divided", "is_plain"]


def divided(tensors: Sequence[torch.Tensor], limit: int | None) -> list[list[int]]:
    """Buckets of one type each, by the places of their tensors."""
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    buckets: list[list[int]] = []
    for of_any in buckets_of(tensors, limit=limit):
        by_dtype: dict[torch.dtype, list[int]] = {}
        for tensor in of_any:
            by_dtype.setdefault(tensor.dtype, []).append(places[id(tensor)])
        buckets += by_dtype.values()
    return buckets


class Reduction:
    """Of the gradients of one update.

    Args:
        options: Of the optimizer.
        name: What the names of its collectives begin with.
        op: How the ranks' gradients are reduced.
        plan: Which gradients they are.
        weight: This rank's.
        buckets: The places of gradients that travel together, in their order.
        first: The number of the first bucket in the names.
    """

    def __init__(
        self,
        options: Options,
        name: str,
        op: ReduceOp,
        plan: int,
        weight: Any,
        buckets: list[list[int]],
        first: int = 0,
    ) -> None:
        self.buckets = buckets
        self._first = first
        self._options = options
        self._name = name
        self._op = op
        self._plan = plan
        self._weight = weight
        # Of the first ones.
        self._under_way: list[_native.HostOperation] = []

    def begun(self) -> int:
        """How many buckets have."""
        return len(self._under_way)

    def begin_next(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begins the next bucket, in place.

        Args:
            tensors: Its gradients.
        """
        arrays = [array_of(tensor) for tensor in tensors]
        is_float32 = tensors[0].dtype == torch.float32
        number = self._first + self.begun()
        self._under_way.append(
            _native.start_allreduce(
                arrays,
                arrays,
                self._op.value,
                f"{self._name}/{number}",
                self._options.process_set.communicator_id(),
                weight=self._weight,
                wire_dtype=self._options.wire_dtype if is_float32 else None,
                # What a rank that fails gives up, whose next bucket would else
                # meet the others' of the step before.
                step="continues" if number else "begins",
                plan=self._plan,
            )
        )

    def begin_rest(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begins what has not.

        Args:
            tensors: All gradients.
        """
        for bucket in self.buckets[self.begun() :]:
            self.begin_next([tensors[place] for place in bucket])

    def wait(self) -> None:
        """Returns when all that has begun is over.

        Raises:
            RingKerasError: Why it could not be.
        """
        for operation in self._under_way:
            operation.wait()


class EarlyReduction:
    """One step's, which begins while backward goes on.

    Args:
        reduction: Of the gradients that the step is expected to make.
        variables: Theirs.
    """

    def __init__(self, reduction: Reduction, variables: Sequence[Any]) -> None:
        self.reduction = reduction
        self._variables = variables
        self._bucket_at = {
            place: number
            for number, bucket in enumerate(reduction.buckets)
            for place in bucket
        }
        self._missing = list(map(set, reduction.buckets))
        # Of those that travel, by the place: their memory, and how often it was
        # changed by then.
        self._as_begun: dict[int, tuple[int, int]] = {}

    def take(self, place: int) -> None:
        """Backward has made this gradient; begins what can begin.

        Raises:
            RingKerasError: If it travels by now, as backward had made it before.
        """
        reduction = self.reduction
        bucket = self._bucket_at[place]
        if bucket < reduction.begun():
            raise self._changed(place)
        self._missing[bucket].discard(place)
        while (begun := reduction.begun()) < len(reduction.buckets):
            gradients = list(map(self._gradient, reduction.buckets[begun]))
            if self._missing[begun] or not all(map(is_plain, gradients)):
                return
            places = zip(reduction.buckets[begun], gradients, strict=True)
            self._as_begun |= {place: _as_is(one) for place, one in places}
            reduction.begin_next(gradients)

    def take_all(self, variables: Sequence[Any]) -> None:
        """Backward is over, and has made the gradients of these.

        Where hooks of the program's own change them none has begun yet. Those begin now
        that have on the other ranks, which may have no such hooks.
        """
        made = set(map(id, variables))
        for place, variable in enumerate(self._variables):
            bucket = self._bucket_at[place]
            if id(variable) in made and bucket >= self.reduction.begun():
                self.take(place)

    def require_as_begun(
        self, gradients: Sequence[torch.Tensor], variables: Sequence[Any]
    ) -> None:
        """Raises if one that travels is not what the optimizer has been given.

        Raises:
            RingKerasError: On this rank.
        """
        given = {id(v): g for v, g in zip(variables, gradients, strict=True)}
        for place, as_begun in self._as_begun.items():
            gradient = given.get(id(self._variables[place]))
            if gradient is not None and _as_is(gradient) != as_begun:
                raise self._changed(place)

    def _changed(self, place: int) -> RingKerasError:
        return RingKerasError(
            f"[RK681] the gradient of '{self._variables[place].path}' has changed "
            "after it had begun to travel, as it had not in the step of fit() that was "
            "watched: backward has come to it twice, or the optimizer was given "
            "another one. Give the model a train_step(data) of its own, if only to "
            "call that of keras.Model: its gradients travel when backward is over."
        )

    def _gradient(self, place: int) -> Any:
        return self._variables[place].value.grad

    def expects(self, variables: Sequence[Any]) -> bool:
        """Whether these are the variables whose gradients it was to reduce."""
        return len(variables) == len(self._variables) and all(
            map(operator.is_, variables, self._variables)
        )

    def begun(self) -> set[int]:
        """The variables, by their ids, whose gradients travel."""
        buckets = self.reduction.buckets[: self.reduction.begun()]
        return {id(self._variables[place]) for bucket in buckets for place in bucket}


def _as_is(gradient: torch.Tensor) -> tuple[int, int]:
    """Where it is, and how often torch has changed it there."""
    return gradient.data_ptr(), gradient._version


def is_plain(gradient: Any) -> bool:
    """Whether its memory can be reduced as it is."""
    return (
        gradient is not None
        and gradient.device.type == "cpu"
        and gradient.layout == torch.strided
        and bool(gradient.is_contiguous())
    )
