"""Measured processes: asked in turn, and what happens to those that fail."""

import os
import select
import sys

import pytest

from benchmarks.cases import Column, Row, Section
from benchmarks.measure import Effort, Results, measure
from benchmarks.peers.places import ROOT_DIR, each_rank
from benchmarks.program import Job, Program, ProgramError, Ranks

# A rank whose operations do nothing, fail, or end it.
RANK = """
import os, sys
from benchmarks.ranks.agent import answer
def fails(request): raise ValueError("no luck")
def ends(request): os._exit(3)
rank = int(os.environ["BENCHMARK_RANK"])
operations = {
    "works": lambda request: request.time(int),
    "fails": fails,
    "ends": ends,
    "ranks": lambda request: [rank],
    "sevens": lambda request: [7],
}
answer(sys.argv[1], rank, "a version", operations)
"""


def program(name: str, *code: str) -> Program:
    def start(job: Job):  # type: ignore[no-untyped-def]
        command = [sys.executable, "-c", "\n".join(code), job.socket_path]
        return each_rank(job, command, {"PYTHONPATH": str(ROOT_DIR)})

    return Program(name, [], start)


def run(*rows: Row) -> Results:
    section = Section("Test", 2, rows, [Column("4 B", "nbytes=4", 4)])
    results = Results()
    measure(section, Effort(rounds=3, round_s=1e-3), [0], results)
    return results


def test_every_round_has_a_figure() -> None:
    good = program("good", RANK)
    results = run(
        Row("all", good, "works"),
        Row("one", good, "works", alone=True),
        Row("large", good, "works", least_nbytes=5),
        Row("unknown", good, "dances"),
    )

    assert {row for row, _ in results.seconds} == {"all", "one"}
    assert len(results.seconds["all", "4 B"]) == 3
    assert results.versions == {"good": "a version"}
    assert results.failures == []


def test_others_go_on_after_a_failure() -> None:
    bad = program("bad", RANK)
    results = run(
        Row("fails", bad, "fails"),
        Row("works", bad, "works"),
        Row("ends", program("ending", RANK), "ends"),
        Row("never starts", program("broken", "raise SystemExit('sorry')"), "works"),
    )

    assert {row for row, _ in results.seconds} == {"works"}
    assert len(results.failures) == 3
    text = "\n".join(results.failures)
    assert "bad: rank 0" in text
    assert "no luck" in text
    assert "ended in 'ends nbytes=4" in text
    assert "sorry" in text


def test_ranks_that_end_between_two_questions_are_named() -> None:
    quits = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(f"0 {os.getpid()} {os.getpid()}\\n".encode())
connection.recv(4096)
print("I have had enough", flush=True)
connection.sendall(b"ok 1.0\\n")
"""
    with Ranks(program("quitting", quits), 1, [0]) as ranks:
        process = os.pidfd_open(int(ranks.version))
        assert ranks.ask("works", timeout_s=60) == [[1.0]]
        assert select.select([process], [], [], 60)[0], "it did not end"
        os.close(process)

        with pytest.raises(ProgramError, match=r"(?s)rank 0 ended.*had enough"):
            ranks.ask("works", timeout_s=60)


def test_a_check_that_ends_its_ranks_does_not_end_the_benchmark() -> None:
    results = run(
        Row("ends", program("ending", RANK), "works", same="ends"),
        Row("works", program("good", RANK), "works"),
    )

    assert {row for row, _ in results.seconds} == {"works"}
    assert "ended in 'ends nbytes=4" in "\n".join(results.failures)


def test_ranks_that_did_not_work_together_have_no_figure() -> None:
    good = program("good", RANK)
    results = run(
        Row("together", good, "works", same="sevens"),
        Row("apart", good, "works", same="ranks"),
    )

    assert {row for row, _ in results.seconds} == {"together"}
    assert results.failures == [
        "apart, 4 B: the ranks did not work together: ranks is [[0.0], [1.0]]"
    ]


def test_what_is_not_installed_is_left_out(tmp_path) -> None:
    missing = Program("missing", [tmp_path / "python"], lambda job: [])

    results = run(Row("missing", missing, "works"))

    assert results.failures == []
    assert results.left_out == [f"missing: left out: there is no {tmp_path / 'python'}"]
