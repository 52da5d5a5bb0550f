"""What the two runs have and have not in common, and the usual reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ring_keras.verify.differences import (
    Difference,
    differences,
    relative_tolerance,
    rounding_noise,
)
from ring_keras.verify.facts import Facts, facts_of
from ring_keras.verify.of_all_ranks import Apart, OfAllRanks
from ring_keras.verify.one_process import run_in_one_process
from ring_keras.verify.recording import Recording

__all__ = ["Comparison", "compare_steps"]

# Fewer examples than this share of all may be on several ranks by chance.
_SHARED = 0.1
_NEAR = 0.05
# Fewer may by chance round as one process does, where the ranks do not.
_OTHER_ORDERS = 4


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Examples:
        >>> comparison = ring.verify.Comparison("2 steps", findings=[], notes=[])
        >>> print(comparison.lines()[-1])
        ring_keras.verify: the ranks train as one process does

    Attributes:
        title: What was compared.
        findings: Mistakes and what to do about them; a cause before its effects.
        notes: Remarks about the comparison.
    """

    title: str
    findings: list[str]
    notes: list[str]

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"ring_keras.verify: {self.title}"]
        lines += [f"  DIFFERS: {finding}" for finding in self.findings]
        lines += [f"  note: {note}" for note in self.notes]
        same = "ring_keras.verify: the ranks train as one process does"
        count = len(self.findings)
        return [*lines, f"ring_keras.verify: {count} found" if count else same]


def compare_steps(
    recording: Recording, of_all: OfAllRanks, one: Facts | str | None, joined: bool
) -> Comparison:
    """Runs the steps in this process, and compares.

    Args:
        recording: This rank's, which is rank 0.
        of_all: All ranks'.
        one: What the script does as one process, or why that is not known; None: there
            is no script.
        joined: Whether it has called `ring.init()`.
    """
    size = len(of_all.batches[0])
    sizes = of_all.batch_sizes()
    steps = f"{of_all.steps} step{'s' if of_all.steps > 1 else ''}"
    title = (
        f"{steps} of '{recording.model.name}' on {size} ranks with "
        f"{' + '.join(map(str, sizes))} examples, and in one process with {sum(sizes)}"
    )
    findings = [
        *_of_the_job(recording, of_all, joined),
        *_of_the_data(recording, of_all, one, size),
        *_of_the_rate(recording, one, size),
        *_of_the_steps(recording, of_all, size),
    ]
    return Comparison(title, findings, list(_notes(recording, one, size)))


def _of_the_job(
    recording: Recording, of_all: OfAllRanks, joined: bool
) -> Iterator[str]:
    if not joined:
        yield (
            "the script does not call ring_keras.init(), so each process trains "
            "alone. Call it before the model is made."
        )
    if of_all.apart is not None and not recording.distributed:
        yield (
            "no optimizer of the model averages its gradients over the ranks. Compile "
            "with ring_keras.DistributedOptimizer(optimizer), and give fit() "
            "ring_keras.callbacks.BroadcastGlobalVariables()."
        )
    if of_all.started_apart is not None:
        yield (
            "before the first step the ranks had not the same values of "
            f"{_described(of_all.started_apart)}. Give fit() ring_keras.callbacks."
            "BroadcastGlobalVariables()."
        )
    if of_all.apart is not None:
        yield (
            f"after step {of_all.apart.step} the ranks had not the same values of "
            f"{_described(of_all.apart)}."
        )


def _of_the_data(
    recording: Recording, of_all: OfAllRanks, one: Facts | str | None, size: int
) -> Iterator[str]:
    own = facts_of(recording).epoch_examples
    whole = one.epoch_examples if isinstance(one, Facts) else None
    shared, total = of_all.shared_examples()
    if own is not None and whole is not None and own >= whole * (1 - 1 / (2 * size)):
        yield (
            f"the data are not sharded: each rank has about {own} examples an epoch, "
            f"and one process has {whole}. Use ring_keras.data.shard(), or "
            "shard(size, rank) of the dataset."
        )
    elif shared == total:
        yield (
            f"all ranks had the same {total} examples: the data are not sharded. Use "
            "ring_keras.data.shard(), or shard(size, rank) of the dataset."
        )
    elif shared > _SHARED * total:
        yield (
            f"{shared} of {total} examples were on more than one rank: are they "
            "shuffled before they are sharded, without a seed that all ranks have? "
            "Use ring_keras.data.shard(seed=...), or shard before shuffle."
        )


def _of_the_rate(
    recording: Recording, one: Facts | str | None, size: int
) -> Iterator[str]:
    factor = _rate_factor(recording, one)
    if factor is not None and math.isclose(factor, size**2, rel_tol=_NEAR):
        yield (
            f"the learning rate is scaled twice: to {recording.learning_rate:g}, which "
            f"is {size} x {size} times that of one process. Multiply it by "
            "ring_keras.size(), or give LearningRateWarmup the rate of one rank, "
            "not both."
        )


def _of_the_steps(recording: Recording, of_all: OfAllRanks, size: int) -> Iterator[str]:
    """The first step that differs."""
    only_averages = recording.only_averages  # One process has none of ours.
    orders = map(of_all.global_batches, (None, *range(_OTHER_ORDERS)))
    one, *others = run_in_one_process(recording, orders)
    noise = rounding_noise(one.after, [other.after for other in others])
    tolerance = relative_tolerance(recording.model.compute_dtype)
    began = [
        (number, before, after, loss)
        for number, (before, after, loss) in enumerate(
            zip(recording.before, recording.after, of_all.losses, strict=False), start=1
        )
        if before is not None
    ]
    for (number, before, after, loss), expected, expected_loss in zip(
        began, one.after, one.losses, strict=False
    ):
        found = differences(
            recording.state.names, before, after, expected, noise, tolerance
        )
        if found:
            yield _difference(number, found, size, recording, only_averages)
        if not math.isclose(loss, expected_loss, rel_tol=10 * tolerance) and not (
            math.isnan(loss) or math.isnan(expected_loss)
        ):
            yield (
                f"step {number}: the mean loss is {loss:.6g} on the ranks, and "
                f"{expected_loss:.6g} in one process, from the same weights: does a "
                "layer or the loss look at the whole batch?"
            )
        if found:
            return


def _difference(
    number: int,
    found: list[Difference],
    size: int,
    recording: Recording,
    only_averages: bool,
) -> str:
    weights = [one for one in found if one.name in recording.state.weights]
    worst = (weights or found)[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = (
        f"step {number}: '{worst.name}'{more}: off by up to {worst.largest:.3g} from "
        f"the same step in one process, {worst.relative:.2%} of that step's update"
    )
    # Of an optimizer's squares it is another than of the gradients.
    factors = [one.factor for one in found if one.factor is not None]
    if any(math.isclose(factor, size, rel_tol=_NEAR) for factor in factors):
        if only_averages:
            return (
                f"{text}; it is {size} times as large, although the optimizer averages "
                "gradients: those of different variables may have come together. Make "
                "layers in the same order on every rank, which a set does not have. "
                "Nor must the loss be multiplied by the number of ranks."
            )
        return (
            f"{text}; it is {size} times as large: gradients are added up over the "
            "ranks, not averaged. op=ring_keras.Sum, and backward_passes_per_step, are "
            "for losses that are sums."
        )
    if any(math.isclose(factor, 1 / size, rel_tol=_NEAR) for factor in factors):
        return (
            f"{text}; it is {1 / size:.2g} times as large: something divides by the "
            "number of ranks that ring_keras divides by too."
        )
    if worst.factor is not None:
        text += f"; it is {worst.factor:.3g} times as large"
    if recording.neutralized.random:
        layers = ", ".join(recording.neutralized.random)
        text += f"; layers that draw random numbers ({layers}) draw others there"
    return f"{text}."


def _notes(recording: Recording, one: Facts | str | None, size: int) -> Iterator[str]:
    neutralized = recording.neutralized
    if recording.passes > len(recording.after):
        yield (
            f"no update was compared: an optimizer takes {recording.passes} steps for "
            f"one, and the first epoch has {len(recording.after)}"
        )
    if recording.divides_state:
        yield (
            "the ranks divide the optimizer's state (shard_state=True): of each part "
            "what the rank that has it made was compared with one process"
        )
    if neutralized.quiet:
        yield (
            "dropout, noise and augmentation were switched off, as N ranks draw other "
            f"numbers than one process: {', '.join(neutralized.quiet)}"
        )
    if neutralized.synchronized:
        yield (
            f"{neutralized.synchronized} BatchNormalization were synchronized for the "
            "comparison. In your training each normalizes its own rank's batch, which "
            "one process would not do: ring_keras.layers."
            "synchronize_batch_normalization(model)"
        )
    if isinstance(one, str):
        yield f"the script does not run in one process, to compare rate and data: {one}"
    factor = _rate_factor(recording, one)
    if factor is not None and not math.isclose(factor, size**2, rel_tol=_NEAR):
        what = (
            "is that of one process"
            if math.isclose(factor, 1)
            else (f"is {factor:.3g} times that of one process")
        )
        yield f"the learning rate, once warm, {what}: {recording.learning_rate:g}"


def _rate_factor(recording: Recording, one: Facts | str | None) -> float | None:
    if not isinstance(one, Facts):
        return None
    if not one.learning_rate or not recording.learning_rate:
        return None
    return recording.learning_rate / one.learning_rate


def _described(apart: Apart) -> str:
    more = f" and {len(apart.names) - 1} more" if len(apart.names) > 1 else ""
    rank = max(range(len(apart.distances)), key=apart.distances.__getitem__)
    return (
        f"'{apart.names[0]}'{more}: rank {rank}'s are off rank 0's by up to "
        f"{apart.distances[rank]:.3g}"
    )
