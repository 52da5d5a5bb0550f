"""What the doctor wants to be installed follows from Keras's back end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ring_keras

LOOK = """
import json
from ring_keras.launch.doctor.host import op_library
found = op_library.check(None)
print(json.dumps([[one.check, one.state.name, one.found] for one in found]))
"""


def looked(backend: str, installed: Path) -> list[list[str]]:
    """Checks, states and texts, with these distributions beside the real ones."""
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: list[list[str]] = json.loads(ended.stdout)
    return found


def install(directory: Path, name: str, version: str) -> None:
    info = directory / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )


@pytest.mark.parametrize(("name", "title"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_another_back_end_needs_no_tensorflow(tmp_path, name, title):
    install(tmp_path, name, "99.1")
    (check, state, text), *others = looked(name, tmp_path)

    assert (check, state) == (title, "OK")
    assert text == f"99.1: Keras's back end is {name} (by KERAS_BACKEND)"
    if name == "torch":  # For Keras nothing is compiled.
        assert not others
        return
    library = Path(ring_keras.__file__).with_name("libring_keras_jax.so")
    ((check, state, text),) = others
    assert (check, state) == ("operations", "OK" if library.exists() else "FAILURE")
    assert library.name in text


def test_one_that_is_not_there_is_a_failure(tmp_path):
    has_torch = any(
        (Path(place) / "torch").is_dir() for place in sys.path if "packages" in place
    )
    if has_torch:
        pytest.skip("PyTorch is there")
    ((check, state, text),) = looked("torch", tmp_path)

    assert (check, state) == ("PyTorch", "FAILURE")
    assert text == "not installed, and Keras's back end is torch (by KERAS_BACKEND)"
