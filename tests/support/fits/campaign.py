"""Runs many programs on ranks that stay alive, and shrinks those that fail."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from support.fits.job import temporary_directory
from support.fits.killed import run_killed
from support.fits.program import Program, made_possible, simpler
from support.fits.running import (
    EQUAL,
    Verdict,
    run_mixed,
    run_program,
    run_with_loss,
    verdict_of,
)
from support.rank_pool import RankPool

__all__ = ["Campaign", "pool_of"]

TIMEOUT_S = 120.0
# What ranks keep of a program that has ended is little, but not nothing.
_PROGRAMS_OF_A_POOL = 150
_MOST_RUNS_OF_A_SHRINK = 60
_LONGEST_SHRINK_S = 150.0
_COMMON = {
    # Several buckets, small as the models are.
    "RING_KERAS_BUCKET_SIZE_BYTES": "200",
    # Ranks that wait for each other are to say so soon.
    "RING_KERAS_COLLECTIVE_TIMEOUT_S": "40",
}


def _rounds_visibly(program: Program) -> bool:
    """Whether sums in another order may differ by more than floats usually do.

    Of 16 bits, float16 has more for a value; what goes through a layer again and again
    shows it all the same, and so do gradients below 6e-5, of which it has fewer bits
    unless the loss is scaled.
    """
    recurs = program.sequence in ("LSTM", "GRU", "Bidirectional")
    return program.floats == "mixed_bfloat16" or (
        program.floats == "mixed_float16" and (recurs or not program.loss_scale)
    )


def pool_of(program: Program) -> tuple[int, str]:
    """Which ranks run it."""
    return program.size, program.transport


class Campaign:
    """Has one pool of ranks for each size and transport."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, str], tuple[RankPool, int]] = {}
        # What the ranks of a pool have refused last, if it was the last they ran.
        self._refused: dict[tuple[int, str], Program] = {}

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        for pool, _ in self._pools.values():
            pool.kill()
        self._pools.clear()

    def run(self, program: Program) -> Verdict:
        """Runs one, and compares.

        Ranks that have refused a program must be as good as new ones.
        """
        key = pool_of(program)
        before = self._refused.pop(key, None)
        verdict = self._run(program)
        if before is not None and verdict.kind not in ("equal", "refused"):
            self._end(key)
            if self._run(program).kind in ("equal", "refused"):
                self._end(key)
                text = f"only after {before}:\n{verdict.text}"
                return Verdict("spoilt", verdict.code, text)
        if verdict.kind == "refused":
            self._refused[key] = program
        elif verdict.kind != EQUAL:
            self._end(key)
        return verdict

    def _run(self, program: Program) -> Verdict:
        try:
            pool = self._pool(program)
            if program.interruption == "killed":
                return self._run_killed(pool, program)
            answers = pool.run(run_program, args=(program,), timeout_s=TIMEOUT_S)
            verdict = verdict_of(program, answers)
            # Another order would give ranks' own layers other rows.
            if verdict.kind == "unequal" and not program.local:
                mixed = pool.run(run_mixed, args=(program,), timeout_s=TIMEOUT_S)
                first = program.trainers[0]
                verdict = verdict_of(program, answers, mixed[first])
            if verdict.kind == "unequal" and program.compression is not None:
                verdict = self._but_for_rounding(program, verdict, compression=None)
            elif verdict.kind == "unequal" and _rounds_visibly(program):
                verdict = self._but_for_rounding(program, verdict, floats="float32")
            elif verdict.kind == "unequal" and program.local:
                # For which there is no other order to compare with.
                verdict = self._but_for_rounding(program, verdict, floats="float64")
        except AssertionError as error:
            return Verdict("hung", text=str(error)[:6000])
        return verdict

    def _but_for_rounding(
        self, program: Program, verdict: Verdict, **longer_floats: str | None
    ) -> Verdict:
        """What is equal in longer floats differs by rounding.

        Of gradients that nearly cancel each other, what remains is rounding.
        """
        longer = replace(program, **longer_floats)
        if made_possible(longer) == longer and self._run(longer).kind == EQUAL:
            return Verdict(EQUAL, "in longer floats", verdict.text)
        return verdict

    def _run_killed(self, pool: RankPool, program: Program) -> Verdict:
        with temporary_directory() as directory:
            answers, lost = run_killed(program, Path(directory), _COMMON, TIMEOUT_S)
        reference = partial(run_with_loss, program, lost)
        alone = pool.run(reference, timeout_s=TIMEOUT_S)[0]
        answers[0]["alone"] = alone
        verdict = verdict_of(program, answers)
        if verdict.kind == "unequal":
            mixed = pool.run(partial(reference, mixed=True), timeout_s=TIMEOUT_S)[0]
            verdict = verdict_of(program, answers, mixed.result)
        return verdict

    def shrunk(self, program: Program, verdict: Verdict) -> tuple[Program, Verdict]:
        """The plainest program found that fails in the same way."""
        left = _MOST_RUNS_OF_A_SHRINK
        deadline = time.monotonic() + _LONGEST_SHRINK_S
        progress = verdict.kind != "spoilt"
        while progress:
            progress = False
            for candidate in simpler(program):
                if left == 0 or time.monotonic() > deadline:
                    return program, verdict
                left -= 1
                again = self.run(candidate)
                if again.kind == verdict.kind:
                    program, verdict, progress = candidate, again, True
                    break
        return program, verdict

    def _pool(self, program: Program) -> RankPool:
        key = pool_of(program)
        pool, count = self._pools.pop(key, (None, 0))
        for other in list(self._pools)[:-1]:  # Two are alive at a time.
            self._end(other)
        if pool is not None and count >= _PROGRAMS_OF_A_POOL:
            pool.kill()
            pool, count = None, 0
        if pool is None:
            pool = RankPool(program.size, _environment(program))
        self._pools[key] = pool, count + 1
        return pool

    def _end(self, key: tuple[int, str]) -> None:
        pool, _ = self._pools.pop(key, (None, 0))
        if pool is not None:
            pool.kill()


def _environment(program: Program) -> dict[str, str] | list[dict[str, str]]:
    if program.transport == "mixed":  # The last rank is on another host.
        hosts = ["one"] * (program.size - 1) + ["other"]
        return [_COMMON | {"RING_KERAS_HOST_NAME": name} for name in hosts]
    if program.transport == "tcp":
        return _COMMON | {"RING_KERAS_TRANSPORT": "tcp"}
    return _COMMON
