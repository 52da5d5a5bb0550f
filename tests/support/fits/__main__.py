"""`python -m support.fits`: draws programs, runs them, shrinks what fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from support.fits.campaign import Campaign, pool_of
from support.fits.program import Program, draw
from support.fits.source import source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=100, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--into", type=Path, help="a file for a line of each program")
    parser.add_argument("--no-shrink", action="store_true", help="print them as drawn")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    bad = 0
    started = time.monotonic()
    with Campaign() as campaign:
        for program in _in_order_of_pools(options.seed, options.fits):
            seed = program.seed
            verdict = campaign.run(program)
            counts[f"{verdict.kind} {verdict.code}".strip()] += 1
            if options.into:
                _note(options.into, seed, verdict)
            if verdict.kind in ("equal", "refused"):
                continue
            bad += 1
            print(f"\n#### {seed}: {verdict.kind}: {verdict.text[:1500]}", flush=True)
            if not options.no_shrink:
                program, verdict = campaign.shrunk(program, verdict)
                print(f"#### shrunk: {verdict.kind}: {verdict.text[:1500]}")
            print(f"# {program}\n{source(program)}", flush=True)
    seconds = time.monotonic() - started
    print(f"\n{options.fits} programs from seed {options.seed} in {seconds:.0f} s:")
    for what, count in counts.most_common():
        print(f"  {count:6} {what}")
    return int(bad > 0)


def _in_order_of_pools(first: int, count: int) -> list[Program]:
    """So that ranks of one kind are alive at a time."""
    programs = [draw(seed) for seed in range(first, first + count)]
    return sorted(programs, key=pool_of)


def _note(path: Path, seed: int, verdict: Any) -> None:
    with path.open("a") as file:
        why = verdict.text[:300].replace("\n", " ") if verdict.text else ""
        file.write(f"{seed}\t{verdict.kind}\t{verdict.code}\t{why}\n")


if __name__ == "__main__":
    sys.exit(main())
