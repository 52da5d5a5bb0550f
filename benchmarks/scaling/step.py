"""A training step whose communication overlaps backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ring_keras.optimizers.buckets import GradientSpec, plan_buckets

__all__ = ["Model", "Step", "Transfer", "Variable", "ready_buckets", "simulate"]


@dataclass(frozen=True)
class Transfer:
    """One allreduce among others.

    Attributes:
        busy_s: The link, or the core, has no time for another one.
        waiting_s: It has.
    """

    busy_s: float
    waiting_s: float


@dataclass(frozen=True)
class Variable:
    """One trainable variable.

    Attributes:
        elements: Its size.
        work: Of its layer's backward pass, in any unit: 0 for all variables of a
            layer but the first.
    """

    elements: int
    work: float


@dataclass(frozen=True)
class Model:
    """What a step of training computes and communicates.

    Attributes:
        name: For the table.
        variables: In the order of the layers.
        forward_s: On one rank.
        backward_s: On one rank.
    """

    name: str
    variables: tuple[Variable, ...]
    forward_s: float
    backward_s: float

    @property
    def alone_s(self) -> float:
        """A step without communication."""
        return self.forward_s + self.backward_s

    @property
    def nbytes(self) -> int:
        """Of all gradients, in float32."""
        return 4 * sum(variable.elements for variable in self.variables)


@dataclass(frozen=True)
class Step:
    """How a step went.

    Attributes:
        step_s: All of it.
        communication_s: What link or core was busy with the buckets' allreduces.
        exposed_s: What of it was left when backward was over.
        buckets: How many.
    """

    step_s: float
    communication_s: float
    exposed_s: float
    buckets: int


def ready_buckets(model: Model, bucket_size_bytes: int) -> list[tuple[float, int]]:
    """When backward has made each bucket, in seconds from the step's start; its bytes.

    Args:
        model: What is trained.
        bucket_size_bytes: See `plan_buckets`.
    """
    specs = [
        GradientSpec(str(index), "float32", 4, (variable.elements,))
        for index, variable in enumerate(model.variables)
    ]
    total_work = sum(variable.work for variable in model.variables)
    made_s = [0.0] * len(specs)
    done = 0.0
    # Backward goes from the last layer to the first.
    for index in reversed(range(len(specs))):
        done += model.variables[index].work
        made_s[index] = model.forward_s + model.backward_s * done / total_work
    return [
        (max(made_s[index] for index in bucket.indices), bucket.nbytes)
        for bucket in plan_buckets(specs, bucket_size_bytes).buckets
    ]


def simulate(
    model: Model,
    bucket_size_bytes: int,
    allreduce: Callable[[int], Transfer],
) -> Step:
    """Replays a step.

    A bucket's allreduce starts when backward has made its last gradient. It takes
    the link when the one before it no longer needs it; they wait side by side.

    Args:
        model: What is trained.
        bucket_size_bytes: See `plan_buckets`.
        allreduce: By its bytes.
    """
    buckets = ready_buckets(model, bucket_size_bytes)
    free_s = communication_s = 0.0
    step_s = model.alone_s
    for ready_s, nbytes in buckets:
        transfer = allreduce(nbytes)
        free_s = max(free_s, ready_s) + transfer.busy_s
        communication_s += transfer.busy_s
        step_s = max(step_s, free_s + transfer.waiting_s)
    return Step(step_s, communication_s, step_s - model.alone_s, len(buckets))
