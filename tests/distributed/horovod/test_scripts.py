"""Scripts that ran with Horovod, and now with another import line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SIZES = [
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(3, marks=pytest.mark.slow),
]
SCRIPTS = Path(__file__).with_name("scripts")


def migrated(name: str, directory: Path) -> Path:
    """The script with `import horovod` made into what the docs say."""
    text, count = re.subn(
        r"^import horovod\.",
        "import ring_keras.horovod.",
        (SCRIPTS / name).read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    path = directory / name
    path.write_text(text)
    return path


def run(
    path: Path,
    size: int,
    *arguments: str,
    options: Sequence[str] = (),
    before: Sequence[str] = (),
    says: int = 0,
) -> list[str]:
    """What rank 0 prints; ranks say so many times what `import horovod` is."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "ring_keras.launch", "-np", str(size), *options),
            *(sys.executable, *before, str(path), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert ended.stderr.count("`import horovod` gives ring_keras.horovod") == says
    lines = ended.stdout.splitlines()
    return [line.removeprefix("[0] ") for line in lines if line.startswith("[0] ")]


@pytest.mark.slow  # The same without an edit is not.
@pytest.mark.parametrize("size", SIZES)
def test_keras_fit(size: int, tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    check_keras_fit(
        size, run(migrated("keras_fit.py", tmp_path), size, str(model)), model
    )


@pytest.mark.slow
def test_keras_fit_without_an_edit(tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    printed = run(
        SCRIPTS / "keras_fit.py", 2, str(model), options=["--horovod"], says=1
    )
    check_keras_fit(2, printed, model)


def check_keras_fit(size: int, printed: list[str], model: Path) -> None:
    assert model.exists()
    assert "same weights: True" in printed
    # Warmed up from one rank's rate, and ten times lower in the end.
    (rates,) = [line for line in printed if line.startswith("rates: ")]
    assert rates == f"rates: {size > 1} True {0.0005 * size}"
    (accuracy,) = [line for line in printed if line.startswith("accuracy: ")]
    assert float(accuracy.split()[1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_custom_loop(size: int, tmp_path: Path) -> None:
    check_custom_loop(run(migrated("custom_loop.py", tmp_path), size))


@pytest.mark.slow  # Once without an edit, in Keras, is run often.
def test_custom_loop_without_an_edit() -> None:
    module = ["-m", "ring_keras.horovod"]
    check_custom_loop(run(SCRIPTS / "custom_loop.py", 2, before=module, says=1))


def check_custom_loop(printed: list[str]) -> None:
    assert printed == [
        "same weights: True",
        "sum over mean: True",
        "bias: 3.00, loss: 0.0000",
    ]


@pytest.mark.slow
def test_a_monitored_session_without_an_edit() -> None:
    printed = run(SCRIPTS / "session.py", 2, options=["--horovod"], says=1)
    assert printed == [
        "same at first: True",
        "same at last: True",
        "bias: 3.00, loss: 0.0000",
    ]


@pytest.mark.slow  # Programs of Keras 2 that have switched eager execution off.
def test_keras_2_without_eager_execution() -> None:
    pytest.importorskip("tf_keras")
    options = ["--horovod", "-x", "TF_USE_LEGACY_KERAS=1"]
    printed = run(SCRIPTS / "keras_2_graph.py", 2, options=options, says=1)
    assert printed == ["as one process: True True", "rates: [0.2, 0.2]"]


@pytest.mark.slow  # Ten seconds.
def test_keras_2_with_a_model_that_fit_builds(tmp_path: Path) -> None:
    pytest.importorskip("tf_keras")
    options = ["--horovod", "-x", "TF_USE_LEGACY_KERAS=1"]
    checkpoint = str(tmp_path / "checkpoint-{epoch}.h5")
    printed = run(SCRIPTS / "keras_2_images.py", 2, checkpoint, options=options, says=1)
    assert "same weights: True" in printed
    assert "rates: True True" in printed
    (accuracy,) = [line for line in printed if line.startswith("accuracy: ")]
    assert float(accuracy.split()[1]) > 0.9
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"checkpoint-{epoch}.h5" for epoch in (1, 2, 3, 4)]
