"""The recorded steps once more: in this process alone, on the global batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

import ring_keras as ring
from ring_keras import keras_internals as internals
from ring_keras.optimizers.gradient_tape import forget_sums
from ring_keras.optimizers.pass_accumulator import PassesSeen, passes_watched
from ring_keras.verify.recording import Recording
from ring_keras.verify.state import Array

__all__ = ["Steps", "leave_job", "run_in_one_process"]

# What makes this process a rank of a job.
_OF_A_JOB = (
    *("RANK", "SIZE", "STORE_ADDRESS", "TOKEN_FILE", "GENERATION"),
    "ELASTIC_SOCKET",
    # And what it would write as that rank.
    *("REPORT_PIPE", "TIMELINE", "TRACE_DIR"),
)


@dataclass(frozen=True)
class Steps:
    """What one process made of each step.

    Attributes:
        after: The state.
        losses: The mean loss; NaN if the model has none.
    """

    after: list[list[Array]]
    losses: list[float]


def alone(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process that is a job of its own."""
    kept = {
        name: value
        for name, value in environment.items()
        if name.removeprefix("RING_KERAS_") not in _OF_A_JOB
        and not name.startswith("HOROVOD_")
    }
    return {**kept, "RING_KERAS_SIZE": "1"}


def leave_job() -> None:
    """Makes this process a job of its own, so that nothing waits for the others."""
    ring.shutdown("its steps were recorded")
    environment = alone(dict(os.environ))
    os.environ.clear()
    os.environ.update(environment)
    ring.init()


def run_in_one_process(
    recording: Recording, orders: Iterable[Sequence[Sequence[Array]]]
) -> list[Steps]:
    """Runs the recorded steps, each from the state in which the ranks began it.

    Args:
        recording: This rank's.
        orders: The global batches, the leaves of each; in several orders of examples.

    Returns:
        The steps with each order.
    """
    model = recording.model
    recording.state.make_whole()
    internals.remove_replacements(model)
    tapes = PassesSeen()
    with passes_watched(tapes, lost_by=""):
        step = _traced_anew(model)
        found = []
        for batches in orders:
            if tapes.most > 1:
                step = _traced_anew(model)
            found.append(_run(recording, step, batches))
    return found


def _traced_anew(model: keras.Model) -> Callable[[Any], Any]:
    """A step whose tapes have not added up anything yet."""
    forget_sums(model)
    step: Callable[[Any], Any] = tf.function(
        model.train_step, autograph=False, reduce_retracing=True
    )
    return step


def _run(
    recording: Recording,
    step: Callable[[Any], Any],
    batches: Sequence[Sequence[Array]],
) -> Steps:
    steps = Steps([], [])
    recording.state.clear_accumulators()  # Of the steps in another order.
    for before, leaves in zip(recording.before, batches, strict=False):
        if before is None:
            continue
        recording.state.assign(before)
        recording.model.reset_metrics()
        step(_batch(recording.structure, leaves))
        steps.after.append(recording.state.values())
        steps.losses.append(_mean_loss(recording.model))
    return steps


def _batch(structure: Any, leaves: Sequence[Array]) -> Any:
    return tf.nest.map_structure(
        lambda position: None if position is None else tf.constant(leaves[position]),
        structure,
    )


def _mean_loss(model: keras.Model) -> float:
    losses = [metric for metric in model.metrics if metric.name == "loss"]
    return float(losses[0].result()) if losses else float("nan")
