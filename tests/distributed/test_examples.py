"""The examples, as their first lines say to run them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES_DIR = Path(__file__).parents[2] / "examples"


def run_example(name: str, *flags: str, size: int = 2) -> str:
    """What it prints on rank 0."""
    command = [sys.executable, str(EXAMPLES_DIR / name), *flags]
    if size > 1:
        command = [
            *(sys.executable, "-m", "ring_keras.launch", "-np", str(size)),
            *command,
        ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@pytest.mark.slow  # `make demo` runs it.
def test_digits_are_learned_and_compared(tmp_path: Path) -> None:
    model = tmp_path / "digits.keras"

    printed = run_example("keras_digits.py", f"--output={model}")

    assert model.exists()
    # One progress bar: that of rank 0.
    assert "[0] Epoch 1/" in printed
    assert "[1] Epoch 1/" not in printed
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)% on 2 rank\(s\)\n", printed)
    assert float(accuracy) >= 97
    (line,) = [x for x in printed.splitlines() if x.startswith("[0] comparison: ")]
    alone, first, last = re.search(
        r"([\d.]+)% in one process .* differs by (\S+) in the first epoch "
        r"and (\S+) in the last",
        line,
    ).groups()
    assert abs(float(alone) - float(accuracy)) < 1
    assert float(first) < 1e-5
    assert float(last) < 1e-5


@pytest.mark.slow  # Loops of their own run in test_keras_exactness.py.
@pytest.mark.parametrize("size", [1, 2])
def test_the_custom_loop_runs_with_and_without_a_launcher(size: int) -> None:
    assert "accuracy" in run_example("custom_loop.py", size=size)


def lines_of(printed: str, start: str, size: int = 2) -> list[str]:
    """The line that begins so, of each rank."""
    found = []
    for rank in range(size):
        begin = f"[{rank}] {start}"
        (line,) = [x for x in printed.splitlines() if x.startswith(begin)]
        found.append(line.removeprefix(f"[{rank}] "))
    return found


def same_line(printed: str, start: str) -> str:
    """The line, which is the same on both ranks."""
    first, second = lines_of(printed, start)
    assert first == second
    return first


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", "mixed_bfloat16"],
)
def test_16_bits_learn_at_the_full_rate(policy: str) -> None:
    printed = run_example("mixed_precision.py", f"--policy={policy}")

    line = same_line(printed, "test accuracy ")
    accuracy, rate, dtype = re.search(
        r"accuracy ([\d.]+)%, learning rate ([\d.]+), .* kernels in (\w+)", line
    ).groups()
    assert float(accuracy) >= 90
    assert float(rate) == 0.04
    assert f"mixed_{dtype}" == policy


@pytest.mark.slow
def test_the_example_for_any_back_end_runs_on_tensorflow() -> None:
    lines = lines_of(run_example("any_back_end.py"), "rank ")

    pattern = r"rank (\d) of 2 on tensorflow: test accuracy ([\d.]+)"
    found = [re.fullmatch(pattern, line).groups() for line in lines]
    assert [rank for rank, _ in found] == ["0", "1"]
    assert found[0][1] == found[1][1]
    assert float(found[0][1]) >= 0.93


@pytest.mark.slow  # test_far_apart.py tests what it shows.
def test_ranks_that_are_far_apart_learn_digits() -> None:
    line = same_line(run_example("far_apart.py", "--wire=int8"), "test accuracy ")

    accuracy, meetings = re.search(r"([\d.]+)% after \d+ .* (\d+) meet", line).groups()
    assert float(accuracy) >= 90
    assert int(meetings) == 8 * 5  # 4 in the 45 steps of an epoch, and one at its end.


@pytest.mark.slow
def test_text_is_classified_in_as_many_steps() -> None:
    line = same_line(run_example("text_classification.py"), "test accuracy ")

    accuracy, steps = re.search(r"accuracy ([\d.]+)% after (\d+) steps", line).groups()
    assert float(accuracy) >= 85
    # Of files of different lengths: no fewer steps than the longer half needs.
    assert int(steps) >= 4 * 60


@pytest.mark.slow
def test_the_gan_makes_up_points_on_the_ring() -> None:
    line = same_line(run_example("gan.py"), "made-up points ")

    radius, spread = map(float, re.findall(r"\d\.\d{4}", line))
    assert abs(radius - 2) < 0.3
    assert spread < 0.5


@pytest.mark.slow
@pytest.mark.timeout(600)  # Tracing such a network takes a minute of two cores.
@pytest.mark.parametrize(
    ("network", "flags"),
    [("ResNet50", ()), ("EfficientNetB0", ("--synchronize",))],
)
def test_networks_of_keras_are_trained(network: str, flags: tuple[str, ...]) -> None:
    flags = (f"--network={network}", "--count=16", "--batch_size=4", *flags)

    # With the loss of two epochs, none of which is NaN, and a checksum of the weights.
    line = same_line(run_example("applications.py", *flags), "loss ")

    assert re.fullmatch(r"loss [\d.]+ to [\d.]+, .*; weights [0-9a-f]{8}", line)


@pytest.mark.slow  # test_tf_keras.py tests what it shows.
def test_a_model_of_keras_2_learns_digits() -> None:
    pytest.importorskip("tf_keras")

    line = same_line(run_example("tf_keras_digits.py"), "test accuracy ")

    assert float(re.search(r"([\d.]+)%", line)[1]) >= 85


@pytest.mark.slow  # test_keras_resume.py tests what it shows.
def test_a_killed_job_is_resumed(tmp_path: Path) -> None:
    def run(directory: str) -> str:
        printed = run_example("resume.py", f"--directory={tmp_path / directory}")
        return same_line(printed, "began with ")

    whole = run("whole")
    killed = subprocess.run(
        [
            *(sys.executable, "-m", "ring_keras.launch", "-np", "2", sys.executable),
            *(str(EXAMPLES_DIR / "resume.py"), f"--directory={tmp_path / 'parts'}"),
            "--die_after=70",
        ],
        capture_output=True,
        timeout=120,
    )
    resumed = run("parts")

    assert killed.returncode == 1
    assert whole.startswith("began with step 1,")
    assert resumed.startswith("began with step 61,")
    assert resumed.partition(",")[2] == whole.partition(",")[2]


@pytest.mark.slow  # Scripts of its own run in test_scripts.py.
def test_a_horovod_script_runs(tmp_path: Path) -> None:
    printed = run_example("horovod_script.py", str(tmp_path))

    line = same_line(printed, "accuracy ")
    assert float(re.search(r"([\d.]+)%", line)[1]) >= 70
    assert len(list(tmp_path.glob("checkpoint-*.keras"))) == 6


@pytest.mark.slow
def test_an_uncaught_exception_is_told_to_the_other_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import ring_keras as ring\n"
        "ring.init()\n"
        "if ring.rank() == 1:\n"
        "    raise ValueError('bad batch 17')\n"
        "ring.barrier()\n"
    )
    command = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
    ended = subprocess.run(
        [*command, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 1
    lost = [x for x in ended.stderr.splitlines() if "PeerLostError" in x]
    assert any("raised ValueError: bad batch 17" in x for x in lost), ended.stderr
    assert "ringrun: [RK801] rank 1 (host " in ended.stderr.splitlines()[-1]


@pytest.mark.slow  # test_training.py of elastic/ does so with less.
def test_the_elastic_loop_goes_on_without_rank_0() -> None:
    command = [sys.executable, "-m", "ring_keras.launch", "-np", "2", "--min-np", "1"]
    command += ["-v", sys.executable, str(EXAMPLES_DIR / "elastic_loop.py")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        printed = []
        for line in job.stdout:
            printed.append(line)
            if line == "[0] step 0: rank 0 of 2\n":
                (pid,) = re.findall(r"rank 0 is pid (\d+)", "".join(printed))
                os.kill(int(pid), signal.SIGKILL)
        assert job.wait(timeout=300) == 0, "".join(printed)[-4000:]
    assert "[1] step " in "".join(printed)
    assert ": rank 0 of 1\n" in "".join(printed)
    (line,) = [line for line in printed if "weights differ" in line]
    steps, error = re.search(r"(\d+) steps, weights differ by (\S+)", line).groups()
    assert int(steps) == 200
    assert float(error) < 0.2


def train_elastic(*options: str, deaths: dict[int, str]) -> tuple[str, float]:
    """What the example prints, and its accuracy, if ranks are killed in epochs.

    Args:
        options: Of ringrun.
        deaths: In which epoch which line's process is killed, "rank 0 of 3" say.
    """
    command = [sys.executable, "-m", "ring_keras.launch", "-np", "3", *options]
    command += [sys.executable, str(EXAMPLES_DIR / "elastic_digits.py")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        printed = []
        for line in job.stdout:
            printed.append(line)
            for epoch, who in deaths.items():
                found = re.search(rf"\] epoch {epoch}: {who}, pid (\d+)", line)
                if found:
                    os.kill(int(found[1]), signal.SIGKILL)
        text = "".join(printed)
        assert job.wait(timeout=400) == 0, text[-4000:]
    (accuracy, *others) = re.findall(r"test accuracy ([\d.]+)% after 8 epochs", text)
    assert all(other == accuracy for other in others)
    return text, float(accuracy)


@pytest.mark.slow  # test_fit.py of elastic/ does so with less.
def test_an_elastic_fit_learns_as_one_that_nobody_leaves() -> None:
    _, whole = train_elastic(deaths={})
    options = ["--min-np", "1", "--max-np", "3"]
    options += ["--blacklist-cooldown-range", "0", "0"]

    text, accuracy = train_elastic(
        *options, deaths={0: "rank 0 of 3", 1: r"rank [12] of (?:2|3)"}
    )

    # Processes 3 and 4 have come in the places of those that were killed.
    assert re.search(r"\[[34]\] epoch \d+: rank [12] of [23]", text), text[-4000:]
    assert whole >= 95
    assert abs(accuracy - whole) <= 2


@pytest.mark.slow  # test_kafka_passes.py tests what it shows.
def test_each_pass_over_a_topic_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    from support.kafka_broker import Broker

    broker = Broker()
    printed = []
    for count in (640, 100):
        lines = [f"{n / count},{2 * n / count}" for n in range(count)]
        for partition in range(2):
            broker.write_values("points", partition, lines[partition::2])
        brokers = broker.config["bootstrap.servers"]
        flags = (f"--brokers={brokers}", f"--directory={tmp_path}")
        printed.append(same_line(run_example("kafka_stream.py", *flags), "pass "))

    assert printed == ["pass 1 ended with step 10", "pass 2 ended with step 12"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        *("model-1.keras", "model-2.keras", "offsets-1.json", "offsets-2.json")
    ]
