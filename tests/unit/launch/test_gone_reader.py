"""What ringrun prints may be read in part."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ["--print-env"],
        ["--version"],
        ["--print-completion", "bash"],
        pytest.param(["--check-build"], marks=pytest.mark.slow),
        ["-np", "2", "--dry-run", "true"],
    ],
)
def test_a_reader_that_has_gone_is_no_error(arguments):
    reading, writing = os.pipe()
    os.close(reading)

    finished = subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )

    os.close(writing)
    assert finished.stderr == b""
    assert finished.returncode == 141  # As the shell says of SIGPIPE.
