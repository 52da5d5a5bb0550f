"""How the tool that runs PyTorch's tests ends when its job does not do as it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In place of PyTorch, which the rank imports first.
WRITE = """
import json, os, pathlib
book = pathlib.Path(os.environ["C10D_SHARE_DIRECTORY"], "results")
lines = [{"tests": 2}, {"test": "one"}, {"test": "one", "result": ["passed", ""]}]
book.write_text("".join(json.dumps(line) + "\\n" for line in lines))
print("the rank's last words", flush=True)
"""


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("raise ImportError('there is no PyTorch')", "there is no PyTorch"),
        (WRITE + "os._exit(3)", "the rank's last words"),
        (WRITE + "os._exit(0)", "expected results of 2 tests, got 1"),
    ],
    ids=["without PyTorch", "dies between tests", "leaves tests out"],
)
def test_a_part_of_the_results_is_not_taken_for_all(
    tmp_path: Path, torch: str, expected: str
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-m", "c10d_share", "--ranks", "1"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 1, ended.stdout
    assert "ring, 1 ranks" not in ended.stdout
    assert expected in ended.stderr
