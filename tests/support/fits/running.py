"""Runs a program on ranks and in one process, and compares."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from ring_keras.verify.differences import (
    differences,
    relative_tolerance,
    rounding_noise,
)
from support.fits import interruptions, models
from support.fits.alone import Alone, AloneWithLoss
from support.fits.job import Result, temporary_directory
from support.fits.program import Program
from support.fits.ranks import Ranks
from support.fits.source import source

__all__ = [
    "EQUAL",
    "Run",
    "Verdict",
    "answer_of",
    "run_mixed",
    "run_program",
    "run_with_loss",
    "trained",
    "verdict_of",
]

EQUAL = "equal"
# Ranks that have waited for each other in vain: no answer, but the end of a wait.
_TIMEOUTS = {"RK206", "RK207"}
# One rank has failed, and the others were told: it must have a code itself.
_TOLD = "RK310"
# Keras computes some of what an update is made of in float32 whatever its type.
_COMPUTE = {
    "float64": "float32",
    "float32": "float32",
    "mixed_float16": "float16",
    "mixed_bfloat16": "bfloat16",
}
_COMPRESSED = {"fp16": "float16", "bf16": "bfloat16"}
# What steps of opposite sign leave of each other: only their rounding.
_CANCELLED = 1e-11


@dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Attributes:
        kind: `EQUAL`, "refused", "unequal", "failed", "hung", or "spoilt" where only
            ranks that ran a refused program before fail.
        code: Of the error that refuses it; "Keras" where one process fails, too. Of an
            equal one, in what.
        text: What differs, or why it failed.
    """

    kind: str
    code: str = ""
    text: str = ""


@dataclass(frozen=True)
class Run:
    """Of one process: what came of it, or the error."""

    result: Result | None
    error: str = ""


def run_program(program: Program) -> dict[str, Any]:
    """On every rank of a job; `verdict_of` makes one verdict of all answers.

    What is preempted and goes on is compared with the same ranks undisturbed.
    """
    with temporary_directory() as directory:
        if program.interruption == "preempted":
            ours = _preempted(program, Path(directory))
        else:
            ours = _by_members(program, Path(directory))
    if ring.rank() not in program.trainers:
        return {}
    answer = answer_of(ours)
    whole = None
    if program.interruption == "preempted":
        with temporary_directory() as directory:
            own = Path(directory)
            whole = trained(program, Ranks(own, resume=ring.data.Resume()))
    if ring.rank() == program.trainers[0]:
        answer["ours"] = ours
        answer["alone"] = whole or _alone(program)
    keras.backend.clear_session()
    return answer


def _by_members(program: Program, directory: Path) -> Run:
    """By all ranks, or by a process set, whose outsider waits."""
    if program.members == "all":
        return trained(program, Ranks(directory))
    members = ring.add_process_set(program.trainers)
    ours = Run(None)
    if members.included():
        ours = trained(program, Ranks(directory, process_set=members))
    ring.remove_process_set(members)
    return ours


def _preempted(program: Program, directory: Path) -> Run:
    """Ends it by a signal, and starts it again."""
    shared = ring.broadcast_object(str(directory / "backup"), name="fits/backup")
    before = signal.getsignal(signal.SIGTERM)
    sends = interruptions.Sends(program.at if ring.rank() == ring.size() - 1 else None)
    for others in ([sends], []):
        resume = ring.data.Resume()
        first = [*others, ring.callbacks.Preemption(shared)]
        try:
            return trained(program, Ranks(directory, first=first, resume=resume))
        except SystemExit:
            signal.signal(signal.SIGTERM, before)
    return Run(None, "it was ended twice")


def answer_of(ours: Run) -> dict[str, Any]:
    """What a rank tells of its run."""
    answer: dict[str, Any] = {"error": ours.error}
    if ours.result is not None:
        answer["digest"] = _digest(ours.result)
        answer["logs"] = ours.result.logs
    return answer


def run_mixed(program: Program) -> Result | None:
    """What the first makes of the program alone, with examples in another order."""
    is_first = ring.rank() == program.trainers[0]
    return _alone(program, mixed=True).result if is_first else None


def run_with_loss(
    program: Program, lost: tuple[int, int] | None, *, mixed: bool = False
) -> Run | None:
    """What rank 0 makes of it alone, for ranks of which one was lost."""
    if ring.rank() > 0:
        return None
    if lost is None:
        return _alone(program, mixed=mixed)
    with temporary_directory() as directory:
        job = AloneWithLoss(ring.size(), Path(directory), lost, mixed=mixed)
        return trained(program, job)


def _alone(program: Program, *, mixed: bool = False) -> Run:
    with temporary_directory() as directory:
        size = len(program.trainers)
        return trained(program, Alone(size, Path(directory), mixed=mixed))


def trained(program: Program, job: Any) -> Run:
    """Runs the program's source."""
    names: dict[str, Any] = {"keras": keras, "np": np, "tf": tf, "ring": ring}
    names |= {name: getattr(models, name) for name in models.__all__}
    exec(compile(source(program), "<fit>", "exec"), names)
    with _floats(program.floats):
        try:
            return Run(names["train"](job))
        except Exception as error:
            # The end of a long one is where its cause stands.
            return Run(None, f"{type(error).__name__}: {error}"[:4000] + _where(error))


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return "".join(f"\n  at {frame.filename}:{frame.lineno}" for frame in frames)


@contextlib.contextmanager
def _floats(name: str) -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64" if name == "float64" else "float32")
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def _digest(result: Result) -> str:
    digest = hashlib.sha256()
    for weight in result.weights:
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


def verdict_of(
    program: Program,
    answers: list[dict[str, Any]],
    mixed: Result | None = None,
) -> Verdict:
    """Compares the ranks with each other, and with one process.

    Args:
        program: That all have run.
        answers: Of `run_program`, by rank.
        mixed: Of `run_mixed`: what rounding may do. It is needed where without it
            the verdict is that they are unequal.
    """
    answers = [answer for answer in answers if answer]  # Of those that train.
    errors = [answer["error"] for answer in answers]
    alone = answers[0]["alone"]
    if any(errors):
        return _verdict_of_errors(errors, alone)
    if alone.error:
        return Verdict("failed", text=f"one process alone fails: {alone.error}")
    if len({answer["digest"] for answer in answers}) > 1:
        return Verdict("unequal", text="the ranks' weights differ")
    ours = answers[0]["ours"].result
    if not program.loss_scale and ours.scales != alone.result.scales:
        # A rank's mean over fewer examples overflows sooner: docs/exactness.md.
        return Verdict(EQUAL, "on all ranks, which have skipped other steps")
    found = list(_differences(program, ours, alone.result, mixed))
    for rank, answer in enumerate(answers):
        if not _same_logs(answer["logs"], ours.logs):
            found.append(f"rank {rank}'s logs are others than rank 0's")
    return Verdict("unequal", text="; ".join(found)) if found else Verdict(EQUAL)


def _verdict_of_errors(errors: list[str], alone: Run) -> Verdict:
    text = "\n".join(f"rank {rank}: {error}" for rank, error in enumerate(errors))
    if not all(errors):
        return Verdict("failed", text=f"some ranks fail, others do not:\n{text}")
    codes = {code for error in errors for code in re.findall(r"\[(RK\d+)\]", error)}
    if codes & _TIMEOUTS:
        return Verdict("hung", "+".join(sorted(codes)), text)
    if codes - {_TOLD}:
        return Verdict("refused", "+".join(sorted(codes)), text)
    if alone.error:
        return Verdict("refused", "Keras", text)
    return Verdict("failed", text=f"an error without a code:\n{text}")


def _differences(
    program: Program, ours: Result, alone: Result, mixed: Result | None
) -> Iterator[str]:
    if len(ours.weights) != len(alone.weights):
        yield f"{len(ours.weights)} weights, not {len(alone.weights)}"
        return
    others = [] if mixed is None else [[mixed.weights]]
    noise = rounding_noise([alone.weights], others) or [0.0] * len(alone.weights)
    tolerance = max(
        relative_tolerance(_COMPUTE[program.floats]),
        relative_tolerance(_COMPRESSED.get(program.compression or "", "float32")),
    )
    for one in differences(
        alone.names, alone.start, ours.weights, alone.weights, noise, tolerance
    )[:2]:
        if one.largest < _CANCELLED:
            continue
        yield (
            f"'{one.name}' is off by up to {one.largest:.3g}, {one.relative:.2%} of "
            "what training changed"
        )
    if program.interruption:
        return  # The logs of an epoch are those of its rest: documented.
    if len(ours.logs) != len(alone.logs):
        yield f"{len(ours.logs)} epochs, not {len(alone.logs)}"
        return
    for epoch, (got, expected) in enumerate(zip(ours.logs, alone.logs, strict=True)):
        got, expected = _without_numbers(got), _without_numbers(expected)
        if set(got) != set(expected):
            yield f"epoch {epoch} logs {sorted(got)}, not {sorted(expected)}"
            return
        second: dict[str, float] = {}
        if mixed is not None and mixed.logs[epoch:]:
            second = _without_numbers(mixed.logs[epoch])
        for name in _compared(program, expected):
            limit = 10 * tolerance * abs(expected[name]) + 1e-6
            limit += 10 * abs(second.get(name, expected[name]) - expected[name])
            distance = abs(got[name] - expected[name])
            both_nan = math.isnan(got[name]) and math.isnan(expected[name])
            if not distance <= limit and not both_nan:
                yield (
                    f"epoch {epoch}: {name} is {got[name]:.8g}, not "
                    f"{expected[name]:.8g}"
                )
                return


def _without_numbers(logs: dict[str, float]) -> dict[str, float]:
    """Keras numbers what it names after what it has made before."""
    return {re.sub(r"_\d+$", "", name): value for name, value in logs.items()}


def _compared(program: Program, logs: dict[str, float]) -> list[str]:
    """All but what docs/keras.md says is not exact: some reported losses."""
    names = list(logs)
    if program.reduction != "default":
        names = [name for name in names if name not in ("loss", "val_loss")]
    if program.model == "two outputs":
        names = [
            name
            for name in names
            if name.removeprefix("val_") not in ("first_loss", "second_loss")
        ]
    return names


def _same_logs(got: list[dict[str, float]], ours: list[dict[str, float]]) -> bool:
    return len(got) == len(ours) and all(
        set(a) == set(b)
        and all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)
        for a, b in zip(got, ours, strict=True)
    )
