"""What moved between two measurements."""

import json
import random
import subprocess
import sys

from benchmarks.comparison import change_of
from benchmarks.peers.places import ROOT_DIR


def test_what_is_slower_in_every_round_moved() -> None:
    change = change_of([1.0, 2.0, 4.0, 8.0, 3.0, 5.0], [1.1, 2.2, 4.4, 8.8, 3.3, 5.5])

    assert change is not None
    assert change.verdict == "slower"
    assert change.ratio == 1.1


def test_what_is_now_slower_now_faster_has_not_moved() -> None:
    change = change_of([1.0] * 6, [0.5, 2.0, 1.1, 0.9, 1.2, 0.8])

    assert change is not None
    assert change.verdict == "same"
    assert (change.low, change.high) == (0.5, 2.0)


def test_of_five_pairs_nothing_can_be_said() -> None:
    assert change_of([1.0] * 5, [2.0] * 5) is None


def test_noise_is_seldom_taken_for_a_change() -> None:
    draw = random.Random(1)

    def noisy() -> list[float]:
        return [draw.lognormvariate(0, 0.3) for _ in range(15)]

    changes = [change_of(noisy(), noisy()) for _ in range(2000)]

    wrong = sum(change is not None and change.moved for change in changes)
    assert 0 < wrong / len(changes) < 0.05


def written(path, factor):
    seconds = {
        "ring_keras": {"4 B": [factor * t * 1e-6 for t in range(1, 10)]},
        "Horovod": {"4 B": [t * 1e-3 for t in range(1, 10)]},
    }
    path.write_text(json.dumps({"sections": [{"title": "T", "seconds": seconds}]}))
    return str(path)


def test_two_files_are_compared(tmp_path) -> None:
    files = [
        written(tmp_path / f"{name}.json", factor)
        for name, factor in (("before", 1), ("after", 0.5))
    ]

    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks", "compare", *files],
        cwd=ROOT_DIR,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    lines = {line.split("|")[1].strip(): line for line in shown.splitlines()[4:-1]}
    assert lines["ring_keras, 4 B"].split("|")[-2].strip() == "faster"
    assert "0.500" in lines["ring_keras, 4 B"]
    assert lines["Horovod, 4 B"].split("|")[-2].strip() == "same"
