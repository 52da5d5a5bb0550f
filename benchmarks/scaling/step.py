"""A training step whose communication overlaps backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ring_keras.buckets import GradientSpec, plan_buckets

__all__ = ["Model", "Step", "Variable", "simulate"]


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
        communication_s: The buckets' allreduces together.
        exposed_s: What of it was left when backward was over.
        buckets: How many.
    """

    step_s: float
    communication_s: float
    exposed_s: float
    buckets: int


def simulate(
    model: Model,
    bucket_size_bytes: int,
    allreduce_s: Callable[[int], float],
) -> Step:
    """Replays a step.

    A bucket's allreduce starts when backward has made its last gradient and the
    allreduce before it is over.

    Args:
        model: What is trained.
        bucket_size_bytes: See `plan_buckets`.
        allreduce_s: The time of an allreduce by its bytes.
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
    buckets = plan_buckets(specs, bucket_size_bytes).buckets
    end_s = communication_s = 0.0
    for bucket in buckets:
        start_s = max(end_s, *(made_s[index] for index in bucket.indices))
        took_s = allreduce_s(bucket.nbytes)
        communication_s += took_s
        end_s = start_s + took_s
    step_s = max(end_s, model.alone_s)
    return Step(step_s, communication_s, step_s - model.alone_s, len(buckets))
