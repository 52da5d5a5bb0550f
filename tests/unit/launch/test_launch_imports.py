"""ringrun starts at once: it imports nothing heavy."""

import subprocess
import sys

CHECK = """
import sys
import ring_keras.launch.cli, ring_keras.launch.doctor.host_program
heavy = {"tensorflow", "keras", "numpy", "absl"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_launch_imports_neither_tensorflow_nor_keras_nor_numpy():
    finished = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, timeout=60, check=False
    )

    assert finished.returncode == 0, finished.stderr.decode()


def test_version():
    import ring_keras

    finished = subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", "--version"],
        capture_output=True,
        timeout=60,
        check=True,
    )

    assert finished.stdout.decode() == f"ring_keras {ring_keras.__version__}\n"
