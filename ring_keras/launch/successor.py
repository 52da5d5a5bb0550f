"""`python -m ring_keras.launch.successor CARD`: takes a job over, in the background.

An agent starts it (succession.py). What it and the ranks say from then on is in a file
beside the card that the user has named, or else beside the agent's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ring_keras.launch.card import Card, CardError
from ring_keras.launch.cli import main as ringrun
from ring_keras.launch.guard import keep_from_above
from ring_keras.launch.output import say


def main() -> int:
    """Runs it; returns its exit code."""
    (path,) = sys.argv[1:]
    # The agent may end before it, and its own guard would take it along.
    keep_from_above()
    try:
        wanted = Path(Card.read(Path(path)).path)
    except CardError as error:
        say(f"[RK822] cannot take the job over: {error}")
        return 1
    for log in (wanted.with_name(f"{wanted.name}.log"), Path(f"{path}.log")):
        try:
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:  # The user's may be on another host's disk.
            continue
        for own in (1, 2):
            os.dup2(fd, own)
        break
    return ringrun(["--take-over", path, "--by-majority"])


if __name__ == "__main__":
    sys.exit(main())
