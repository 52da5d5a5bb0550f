"""The command line: python -m benchmarks [--quick] [SECTION ...].

`python -m benchmarks compare A.json B.json` says what moved between two runs beyond
noise. `python -m benchmarks startup` measures what comes before the first step,
`python -m benchmarks setup` what comes before that: a fresh clone's `make demo`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.against import beside, changes_since
from benchmarks.cases import Section
from benchmarks.collectives import collectives
from benchmarks.comparison import compare_runs, report_changes
from benchmarks.gradients import gradients, tensors
from benchmarks.machine import Load, describe_machine, usable_cores
from benchmarks.measure import Effort, Results, measure
from benchmarks.private_network import enter_private_network
from benchmarks.report import report
from benchmarks.set_up import set_up
from benchmarks.startup import startup
from benchmarks.training import training

_SECTIONS: Mapping[str, Callable[[bool], Sequence[Section]]] = {
    "collectives": collectives,
    "tensors": tensors,
    "gradients": gradients,
    "training": training,
}


def main() -> int:
    if sys.argv[1:2] == ["compare"]:
        return _compare_files()
    if sys.argv[1:2] == ["startup"]:
        enter_private_network()
        return startup(sys.argv[2:])
    if sys.argv[1:2] == ["setup"]:
        return set_up(sys.argv[2:])
    options = _options()
    enter_private_network()
    # As an exception, so that the ranks are ended too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    rounds, round_s = (5, 0.05) if options.quick else (9, 0.15)
    if options.against:
        rounds = 15  # Of five pairs nothing could be said.
    effort = Effort(
        options.rounds or rounds, options.round_s or round_s, options.launches
    )
    sections = [
        section
        for name in options.sections or _SECTIONS
        for section in _SECTIONS[name](options.quick)
        if (options.only or "") in section.title
    ]
    if options.against:
        sections = [beside(section, options.against) for section in sections]
    machine = describe_machine()
    print("# ring_keras beside its peers\n")
    for name, value in machine.items():
        print(f"{name}: {value}")
    print(flush=True)
    written: list[dict[str, object]] = []
    failed = False
    try:
        for section in sections:
            results = _run(section, effort, written)
            failed = failed or bool(results.failures)
            if options.against:
                changes = changes_since(section, options.against, results)
                title = f"{section.title}, since {options.against}"
                print(report_changes(title, changes), flush=True)
    finally:
        if options.json:
            run = {"machine": machine, "effort": dataclasses.asdict(effort)}
            text = json.dumps({**run, "sections": written}, indent=1)
            options.json.write_text(text, encoding="utf-8")
    return int(failed)


def _compare_files() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="What moved between two runs on one machine, beyond noise.",
    )
    parser.add_argument("before", type=Path, metavar="A.json", help="by --json")
    parser.add_argument("after", type=Path, metavar="B.json", help="the same, later")
    options = parser.parse_args(sys.argv[2:])
    before, after = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (options.before, options.after)
    )
    for title, changes in compare_runs(before, after).items():
        print(report_changes(title, changes))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(_SECTIONS)}")
    add("--quick", action="store_true", help="less of it, in a few minutes")
    add("--only", metavar="TEXT", help="tables whose title has this in it")
    add("--rounds", type=int, help="how often each is measured, in turn")
    add("--round-s", type=float, help="about how long, each time")
    add("--launches", type=int, default=1, help="how often all is started anew")
    add(
        "--against",
        type=Path,
        metavar="DIR",
        help="measure another checkout, built in it, in turn with this one, and say "
        "what moved",
    )
    add("--json", type=Path, metavar="FILE", help="write every round's figure there")
    options = parser.parse_args()
    if unknown := sorted(set(options.sections) - set(_SECTIONS)):
        parser.error(
            f"there is no {', '.join(unknown)}; there are {', '.join(_SECTIONS)}"
        )
    return options


def _run(section: Section, effort: Effort, written: list[dict[str, object]]) -> Results:
    """Measures a section and prints it, as far as it got if it is interrupted."""
    before = Load.now()
    results = Results()
    try:
        measure(section, effort, usable_cores(), results)
    finally:
        load = _load_line(before, Load.now())
        print(report(section, results))
        for program, version in results.versions.items():
            print(f"{program}: {version}")
        for message in (*results.left_out, *results.failures):
            print(f"NOT MEASURED: {message}")
        print(f"{load}\n", flush=True)
        written.append(_as_json(section, results, load))
    return results


def _load_line(before: Load, after: Load) -> str:
    return (
        f"Load before {before.average:.2f}, after {after.average:.2f}; "
        f"{after.stolen_since(before):.1%} of the time went to other machines"
    )


def _as_json(section: Section, results: Results, load: str) -> dict[str, object]:
    seconds: dict[str, dict[str, list[float]]] = {}
    for (row, column), rounds in results.seconds.items():
        seconds.setdefault(row, {})[column] = rounds
    return {
        "title": section.title,
        "ranks": section.ranks,
        "seconds": seconds,
        "versions": results.versions,
        "left_out": results.left_out,
        "failures": results.failures,
        "load": load,
    }


sys.exit(main())
