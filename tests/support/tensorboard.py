"""The real TensorBoard, as a process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_ADDRESS = re.compile(r"http://\S+")


@contextlib.contextmanager
def tensorboard(logdir: Path, *options: str) -> Iterator[str]:
    """Serves a folder of event files on a free port of loopback; gives its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)]
    command += ["--host=127.0.0.1", "--port=0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    # Ends a server that never says where it is.
    timer = threading.Timer(120, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if found := _ADDRESS.search(line):
                break
        else:
            raise AssertionError("TensorBoard ended:\n" + "".join(said))
        timer.cancel()
        # Nobody reads on, and a full pipe would stop it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield found.group()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
