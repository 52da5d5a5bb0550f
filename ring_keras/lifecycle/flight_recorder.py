"""Where a rank says what it is doing when something is wrong.

A rank for which others have waited too long logs in which line its program stands.
With a directory for traces, the engine writes its collectives there, and has a thread
here write the stacks of all threads to the same file, under Python's lock. If no thread
gives that back for seconds, Python's faulthandler reads the stacks without it, so such
a thread is seen as well.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ring_keras import _native
from ring_keras.monitoring.analyze.stacks import read_stacks, users_frame

__all__ = ["begin_flight_recorder", "end_flight_recorder"]

# What faulthandler takes for its descriptor. Of this process, which has one SIGUSR2
# whatever job it is in. None: not open.
_descriptor: int | None = None
_thread: threading.Thread | None = None
_opened: set[Path] = set()

# As many as faulthandler shows.
_MAX_THREADS = 100
_MAX_FRAMES = 100


def begin_flight_recorder(trace_dir: str | None, rank: int) -> None:
    """Has this process write to the directory from now on, also at SIGUSR2.

    What an earlier process wrote as this rank is gone then.

    Args:
        trace_dir: Made if it is not there. None: nothing is written, the signal does
            what it did, and only the log says where this rank stands.
        rank: This one.
    """
    global _thread
    end_flight_recorder()
    path = None if trace_dir is None else _open(trace_dir, rank)
    if path is None:
        _native.begin_places()
    else:
        _native.begin_stacks_by_handler()
    _thread = threading.Thread(
        target=_answer, args=(path,), name="ring_keras flight recorder", daemon=True
    )
    _thread.start()


def _open(trace_dir: str, rank: int) -> Path:
    """Has the file take what the engine, and the signal, write."""
    global _descriptor
    path = Path(trace_dir, f"rank{rank}.trace")
    path.parent.mkdir(parents=True, exist_ok=True)
    anew = 0 if path in _opened else os.O_TRUNC
    _opened.add(path)
    # At the end of the file, wherever that is: the engine writes there as well.
    _descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | anew, 0o600)
    begin = {"event": "begin", "main_thread": threading.main_thread().ident}
    os.write(_descriptor, (json.dumps(begin) + "\n").encode())
    # One of the program's own would stay, and read stacks when the signal comes.
    faulthandler.unregister(signal.SIGUSR2)
    _native.listen_for_dump_signal()
    faulthandler.register(signal.SIGUSR2, _descriptor, all_threads=True)
    return path


def end_flight_recorder() -> None:
    """Closes the file; the signal has no effect then."""
    global _descriptor, _thread
    if _thread is None:
        return
    written = _native.end_stacks()
    if _descriptor is not None:
        faulthandler.unregister(signal.SIGUSR2)
    if written:  # Else both stay: a file system hangs.
        if _descriptor is not None:
            os.close(_descriptor)
        _thread.join()
    _descriptor = _thread = None


def _answer(path: Path | None) -> None:
    while _native.await_stacks_wanted():
        awaited = _native.take_place_wanted()
        if awaited:
            _native.log("warning", f"{awaited} It stands in {_place()}.")
        if path is None or not _native.claim_stacks():
            continue
        try:
            text = "\n".join(_stacks()).encode(errors="replace")
            with path.open("ab") as file:
                file.write(text)
        except OSError as error:
            _native.log(
                "warning", f"[RK134] flight recorder: cannot write to {path}: {error}"
            )
        finally:
            _native.stacks_written()


def _place() -> str:
    """Where the user's program stands, or at least the main thread."""
    main_thread = threading.main_thread().ident or 0
    stacks = read_stacks(list(_stacks()))
    frames = [stack.frames[0] for stack in stacks if stack.thread == main_thread]
    frame = users_frame(stacks, main_thread) or next(iter(frames), None)
    return "no code of Python's" if frame is None else str(frame)


def _stacks() -> Iterator[str]:
    """Lines as faulthandler writes them, of all threads but this one."""
    own = threading.get_ident()
    frames = [item for item in sys._current_frames().items() if item[0] != own]
    for thread, innermost in frames[:_MAX_THREADS]:
        yield f"Thread 0x{thread:016x} (most recent call first):"
        frame: FrameType | None = innermost
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            code, line = frame.f_code, frame.f_lineno
            yield f'  File "{code.co_filename}", line {line} in {code.co_name}'
            frame = frame.f_back
        yield ""
