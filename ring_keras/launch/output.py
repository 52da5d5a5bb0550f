"""Brings what the ranks print to this terminal, line by line, and to files."""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from ring_keras.launch.console import OWN_PREFIX, Console, Footer, write_all
from ring_keras.launch.hints import hints_in
from ring_keras.launch.lines import LineBuffer
from ring_keras.launch.shared_tracebacks import SharedTracebacks
from ring_keras.launch.start_lines import StartLines
from ring_keras.launch.tracebacks import Line

STREAMS = ("stdout", "stderr")

_READ_NBYTES = 1 << 16
_LAST_LINES = 6  # As many as the end of a traceback has, with what it marks.
_COLOURS = (36, 33, 32, 35, 34, 31)  # Of a terminal: cyan, yellow, ...

# As the last line of a traceback names them.
_ERROR_CODE = re.compile(rb"Error: \[(RK\d{3})\] ")

_Taken = Callable[[int], None]


class _Own(Enum):
    """What comes from ringrun itself."""

    LINE = auto()
    STATUS = auto()
    STREAM = auto()  # One more will be fed.
    RELEASE = auto()  # No rank will be added any more.
    ABANDON = auto()  # What comes from this host's pipes is not waited for.


@dataclass
class _Stream:
    """One rank's standard output or error."""

    rank: int
    prefix: bytes
    console: Console
    file: _RankFile | None
    lines: LineBuffer = field(default_factory=LineBuffer)
    last: list[bytes] = field(default_factory=list)


class _RankFile:
    """Holds what one stream brought. A full disk costs the file, not the job."""

    def __init__(self, path: Path, *, appends: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        how = os.O_APPEND if appends else os.O_TRUNC
        self._fd: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | how | os.O_CLOEXEC, 0o666
        )

    def write(self, data: bytes) -> None:
        """Adds the data, unless an earlier write failed."""
        if self._fd is None:
            return
        try:
            write_all(self._fd, data)
        except OSError as error:
            self._tell(error)
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        """Ends the file; over a network, only this may show a failed write."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.close(fd)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        say(
            f"cannot write {self._path} ({error.strerror}): it is incomplete; "
            "the job goes on"
        )


class OutputPump:
    """A thread that writes every rank's output until all have closed it.

    A thread of its own: a terminal that is held up must hold up the ranks, but
    not the launcher's watch over them.

    Args:
        directory: Gets `rank.N/stdout` and `rank.N/stderr`, byte for byte.
        colour: Whether prefixes on a terminal are coloured.
        timestamps: Whether lines begin with the time at which they came.
        raw: Whether what all ranks say when they start, and tracebacks that they
            share, are shown of each.
        on_broken: Called once, from the thread, when nobody reads our own
            output any more.
        appends: Whether the files go on where another launcher has left them.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        colour: bool,
        timestamps: bool,
        raw: bool,
        on_broken: Callable[[], None],
        appends: bool = False,
    ) -> None:
        self._directory = directory
        self._appends = appends
        self._colour = colour
        self._timestamps = timestamps
        self._start_lines = None if raw else StartLines()
        self._tracebacks = None if raw else SharedTracebacks()
        self.codes: dict[bytes, None] = {}
        """Those of the errors that were shown, in order."""
        self.hints: dict[str, None] = {}
        """What to say about those that have no code."""
        self._on_broken = on_broken
        self._broken = False
        footer = Footer()
        self._consoles = {"stdout": Console(1, footer), "stderr": Console(2, footer)}
        self._selector = selectors.DefaultSelector()
        self._open_count = 0
        self._started = self._ended = False
        self._fed: queue.SimpleQueue[tuple[_Stream | _Own, bytes, _Taken]]
        self._fed = queue.SimpleQueue()
        self._fed_streams: dict[tuple[int, str], _Stream] = {}
        self._added: queue.SimpleQueue[tuple[int, _Stream]] = queue.SimpleQueue()
        self._wake_fd, self._wake_write = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._wake_write, False)
        self.done_fd, self._done_write = os.pipe()
        """Reads end of file when all output has been written."""

    def add_rank(self, rank: int, stdout_fd: int, stderr_fd: int) -> None:
        """Takes over the reading ends of a rank's pipes.

        Raises:
            OSError: If a file for them cannot be opened, and the job has not begun.
        """
        for name, fd in (("stdout", stdout_fd), ("stderr", stderr_fd)):
            self._added.put((fd, self._open(rank, name)))
        if not self._started:
            self._take_added()
        elif self._ended:
            self._close_added()
        else:
            self._wake()

    def add_fed_rank(self, rank: int) -> None:
        """Expects `feed` to bring what the rank prints.

        Raises:
            OSError: If a file for it cannot be opened, and the job has not begun.
        """
        for name in STREAMS:
            self._fed_streams[rank, name] = self._open(rank, name)
            self._put(_Own.STREAM, b"", lambda _nbytes: None)
        if not self._started:
            self._take_fed()

    def hold(self) -> None:
        """More ranks may be added after all have ended, until `release`."""
        self._put(_Own.STREAM, b"", lambda _nbytes: None)
        if not self._started:
            self._take_fed()

    def release(self) -> None:
        """No rank will be added any more."""
        self._put(_Own.RELEASE, b"", lambda _nbytes: None)

    def abandon(self) -> None:
        """This host's ranks have ended; what they have left holds their pipes open."""
        self._put(_Own.ABANDON, b"", lambda _nbytes: None)

    def feed(self, rank: int, name: str, data: bytes, taken: _Taken) -> None:
        """Takes what a rank of another host printed; nothing: it has closed that.

        Args:
            rank: The rank, added by `add_fed_rank`.
            name: Which of `STREAMS`; what comes after its end is dropped.
            data: The bytes.
            taken: Called from the thread, with their number, once they are written.
        """
        stream = self._fed_streams.get((rank, name))
        if stream is None or self._ended:
            taken(len(data))
            return
        if not data:
            del self._fed_streams[rank, name]
        self._put(stream, data, taken)

    def say(self, message: str) -> None:
        """Writes a line of ringrun's own, without waiting for whoever reads it."""
        if self._started and not self._ended:
            self._put(_Own.LINE, message.encode(errors="replace"), lambda _nbytes: None)
        else:
            say(message)

    def note_interrupt(self) -> None:
        """The user has interrupted the ranks, which need not say so."""
        if self._tracebacks is not None:
            self._tracebacks.interrupted = True

    def show_status(self, status: str) -> None:
        """Shows a line below all others, on a terminal; empty: none."""
        if self._started and not self._ended:
            self._put(
                _Own.STATUS, status.encode(errors="replace"), lambda _nbytes: None
            )

    def start(self) -> None:
        """Starts to read."""
        self._started = True
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="output", daemon=True).start()

    def _put(self, stream: _Stream | _Own, data: bytes, taken: _Taken) -> None:
        self._fed.put((stream, data, taken))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # Full: it will wake anyway.
            os.write(self._wake_write, b".")

    def _open(self, rank: int, name: str) -> _Stream:
        file = None
        if self._directory is not None:
            path = self._directory / f"rank.{rank}" / name
            try:
                file = _RankFile(path, appends=self._appends)
            except OSError as error:
                if not self._started and not self._appends:
                    raise
                # The rank may run already, and the job with it.
                self.say(
                    f"cannot write {path} ({error.strerror}): what rank {rank} prints "
                    "is shown here alone; the job goes on"
                )
        console = self._consoles[name]
        if name == "stderr" and self._tracebacks is not None:
            self._tracebacks.add_rank(rank)
        return _Stream(rank, self._prefix(rank, console), console, file)

    def _prefix(self, rank: int, console: Console) -> bytes:
        prefix = f"[{rank}]"
        if self._colour and console.is_terminal:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        return prefix.encode() + b" "

    def _run(self) -> None:
        try:
            while self._open_count:
                for key, _ in self._selector.select(self._time_left()):
                    if key.fd == self._wake_fd:
                        os.read(self._wake_fd, _READ_NBYTES)
                        self._take_added()
                        self._take_fed()
                    elif key.fd in self._selector.get_map():
                        self._read(key.fd, key.data)
                self._poll_tracebacks()
        finally:
            # If this thread fails, the ranks must not wait for a reader.
            self._ended = True
            self._close_added()
            self._write_own(_Own.STATUS, b"")
            for key in self._selector.get_map().values():
                os.close(key.fd)
            with contextlib.suppress(queue.Empty):
                while True:
                    own, data, taken = self._fed.get_nowait()
                    if own is _Own.LINE:
                        say(data.decode())
                    taken(len(data))
            os.close(self._done_write)

    def _read(self, fd: int, stream: _Stream) -> None:
        data = os.read(fd, _READ_NBYTES)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
        self._write(stream, data)

    def _abandon(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.fd != self._wake_fd:
                self._selector.unregister(key.fd)
                data = read_rest(key.fd)
                os.close(key.fd)
                if data:
                    self._write(key.data, data)
                self._write(key.data, b"")

    def _take_added(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                fd, stream = self._added.get_nowait()
                self._selector.register(fd, selectors.EVENT_READ, stream)
                self._open_count += 1

    def _close_added(self) -> None:
        """Nobody reads any more what these print."""
        with contextlib.suppress(queue.Empty):
            while True:
                os.close(self._added.get_nowait()[0])

    def _take_fed(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                stream, data, taken = self._fed.get_nowait()
                if isinstance(stream, _Stream):
                    self._write(stream, data)
                elif stream is _Own.STREAM:
                    self._open_count += 1
                elif stream is _Own.RELEASE:
                    self._open_count -= 1
                elif stream is _Own.ABANDON:
                    self._abandon()
                else:
                    self._write_own(stream, data)
                taken(len(data))

    def _write_own(self, what: _Own, data: bytes) -> None:
        console = self._consoles["stderr"]
        with contextlib.suppress(OSError):
            if what is _Own.STATUS:
                console.show_status(data)
            else:
                console.write([OWN_PREFIX + data])

    def _write(self, stream: _Stream, data: bytes) -> None:
        if not data:
            self._open_count -= 1
        if stream.file is not None:
            if data:
                stream.file.write(data)
            else:
                stream.file.close()
        self._unless_broken(lambda: self._show(stream, data))

    def _unless_broken(self, show: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            show()
        except OSError:
            # Go on reading: the ranks shall end as they are told, not block.
            self._broken = True
            self._on_broken()

    def _time_left(self) -> float | None:
        """How long tracebacks may wait for others; None: there is none."""
        deadline = None if self._tracebacks is None else self._tracebacks.deadline()
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _poll_tracebacks(self) -> None:
        if self._tracebacks is None or self._time_left() != 0:
            return
        lines = self._tracebacks.poll(time.monotonic())
        self._unless_broken(lambda: self._write_lines(self._consoles["stderr"], lines))

    def _show(self, stream: _Stream, data: bytes) -> None:
        lines = stream.lines.feed(data) if data else stream.lines.finish()
        if self._start_lines is not None:
            lines = self._start_lines.select(stream.rank, lines)
        prefix = self._now() + stream.prefix
        progress = stream.lines.progress()
        if progress is not None:
            stream.console.show_progress(prefix + progress)
        elif lines:
            stream.console.show_progress(b"")
        shown = [Line(prefix, line) for line in lines]
        if self._tracebacks is None:
            # A traceback may come in several pieces.
            stream.last += lines
            self.hints |= dict.fromkeys(hints_in(b"\n".join(stream.last)))
            del stream.last[:-_LAST_LINES]
        elif stream.console is self._consoles["stderr"]:
            now = time.monotonic()
            shown = self._tracebacks.feed(stream.rank, prefix, lines, now)
            if not data:
                shown += self._tracebacks.end(stream.rank, now)
        self._write_lines(stream.console, shown)

    def _write_lines(self, console: Console, lines: Sequence[Line]) -> None:
        for line in lines:
            for code in _ERROR_CODE.findall(line.text):
                self.codes.setdefault(code)
        # A traceback comes in one piece, unless it is shown raw.
        text = b"\n".join(line.text for line in lines)
        self.hints |= dict.fromkeys(hints_in(text))
        console.write([line.prefix + line.text for line in lines])

    def _now(self) -> bytes:
        if not self._timestamps:
            return b""
        now = datetime.datetime.now().astimezone()
        return now.isoformat(" ", "milliseconds").encode() + b" "


def say(message: str) -> None:
    """Writes a line of ringrun's own to standard error."""
    with contextlib.suppress(OSError):
        write_all(2, OWN_PREFIX + f"{message}\n".encode(errors="replace"))


def read_rest(fd: int) -> bytes:
    """What is in a pipe whose end is not waited for."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, _READ_NBYTES)  # All that a pipe holds.
    return b""


def to_reader(write: Callable[[], int]) -> int:
    """Ends quietly where the reader has read enough, as `head` does."""
    try:
        code = write()
        sys.stdout.flush()
    except BrokenPipeError:
        # Or Python would try to write the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code
