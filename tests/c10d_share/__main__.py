"""Starts jobs until each test has a result: one may end the job that runs it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

# Of a job, without any result in it.
_SILENT_S = 300


def main() -> None:
    """Prints what became of each test that did not pass, and how many there are."""
    parser = argparse.ArgumentParser(prog="python -m c10d_share")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", choices=["ring", "gloo"], default="ring")
    parser.add_argument("--only", default="", help="a part of the tests' names")
    parser.add_argument("--json", type=Path, help="where to write the results")
    asked = parser.parse_args()
    results = _all_results(asked)
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1))
    counts = Counter(result[0] for result in results.values())
    for name, (outcome, why) in sorted(results.items()):
        if outcome != "passed":
            print(f"| `{name}` | {outcome} | {why} |")
    print(f"\n{asked.backend}, {asked.ranks} ranks: {dict(counts)}")


def _all_results(asked: argparse.Namespace) -> dict[str, list[str]]:
    """Outcome and reason of each test.

    Raises:
        RuntimeError: If a job ended badly, or left tests out, while none was under way.
    """
    results: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="c10d_share-") as directory:
        book = Path(directory) / "results"
        while True:
            book.write_text("")
            status, said = _run_job(asked, directory, sorted(results))
            lines = [json.loads(line) for line in book.read_text().splitlines()]
            begun: dict[str, Any] = {}
            for line in lines:
                if "test" in line:
                    begun[line["test"]] = line.get("result")
            lost = [name for name, result in begun.items() if result is None]
            results |= {n: r for n, r in begun.items() if r is not None}
            ended = f"exit status {status}: {' '.join(said[-2:])[:300]}"
            results |= {name: ["ended the job", ended] for name in lost}
            if lost:
                continue
            log = "\n".join(said[-20:])
            if status != 0:
                raise RuntimeError(
                    f"a job ended with exit status {status} while no test was under "
                    f"way. Its log's end:\n{log}"
                )
            expected = next((line["tests"] for line in lines if "tests" in line), None)
            if len(results) != expected:
                raise RuntimeError(
                    f"expected results of {expected} tests, got {len(results)}. The "
                    f"log's end:\n{log}"
                )
            return results


def _run_job(
    asked: argparse.Namespace, directory: str, done: list[str]
) -> tuple[int, list[str]]:
    """A job over all tests that are not done: its exit status, and its log's lines."""
    env = {
        **os.environ,
        "C10D_SHARE_DONE": json.dumps(done),
        "C10D_SHARE_ONLY": asked.only,
        "C10D_SHARE_DIRECTORY": directory,
        "C10D_SHARE_BACKEND": asked.backend,
        "RING_KERAS_COLLECTIVE_TIMEOUT_S": "60",
    }
    command = [sys.executable, "-m", "ring_keras.launch", "-np", str(asked.ranks)]
    log = Path(directory) / "log"
    with log.open("w") as output:
        job = subprocess.Popen(
            [*command, sys.executable, "-m", "c10d_share.rank"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        book = Path(directory) / "results"
        size = -1
        while True:
            try:
                job.wait(_SILENT_S)
                break
            except subprocess.TimeoutExpired:
                if book.stat().st_size == size:
                    job.terminate()
                size = book.stat().st_size
    lines = [line for line in log.read_text(errors="replace").splitlines() if line]
    return job.returncode, lines


if __name__ == "__main__":
    main()
