"""Where a rank writes what it is doing when something is wrong.

The engine writes its collectives, and sends itself SIGUSR2; Python's faulthandler then
writes the stacks of all threads to the same file. It needs no lock of Python's, so also
a thread that never gives the lock back is seen.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from pathlib import Path

from ring_keras import _native

__all__ = ["begin_flight_recorder", "end_flight_recorder"]

# Of this process, which has one SIGUSR2 whatever job it is in. None: not open.
_descriptor: int | None = None
_opened: set[Path] = set()


def begin_flight_recorder(trace_dir: str | None, rank: int) -> None:
    """Has this process write to the directory from now on, also at SIGUSR2.

    What an earlier process wrote as this rank is gone then.

    Args:
        trace_dir: Made if it is not there. None: nothing is written, and the signal
            does what it did.
        rank: This one.
    """
    global _descriptor
    end_flight_recorder()
    if trace_dir is None:
        return
    path = Path(trace_dir, f"rank{rank}.trace")
    path.parent.mkdir(parents=True, exist_ok=True)
    anew = 0 if path in _opened else os.O_TRUNC
    _opened.add(path)
    # At the end of the file, wherever that is: the engine writes there as well.
    _descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | anew, 0o600)
    begin = {"event": "begin", "main_thread": threading.main_thread().ident}
    os.write(_descriptor, (json.dumps(begin) + "\n").encode())
    _native.listen_for_dump_signal()
    faulthandler.register(signal.SIGUSR2, _descriptor, all_threads=True, chain=True)


def end_flight_recorder() -> None:
    """Closes the file; the signal has no effect then."""
    global _descriptor
    if _descriptor is None:
        return
    faulthandler.unregister(signal.SIGUSR2)
    os.close(_descriptor)
    _descriptor = None
