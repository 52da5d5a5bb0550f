"""What a process of an elastic job hears from ringrun."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from ring_keras.config import Config, split_address

__all__ = [
    "ElasticLauncher",
    "NoGenerationError",
    "is_elastic",
    "is_late",
    "last_place",
    "launcher_of",
    "note_state",
    "others_wait",
]

_READ_NBYTES = 4096


class NoGenerationError(Exception):
    """The job has no next generation, for the reason given."""


class ElasticLauncher:
    """The line to ringrun; one for as long as the process lives. Has no TensorFlow.

    Args:
        path: Where ringrun listens.
        number: This process's, which it keeps.

    Raises:
        OSError: If ringrun does not listen.
    """

    def __init__(self, path: Path, number: int) -> None:
        self._number = number
        self._socket = socket.socket(socket.AF_UNIX)
        # The path itself may be longer than what an address can hold.
        directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        self._unread = b""
        self._others_wait = False
        self.has_state = False
        """Whether it has begun the job with others, or has taken their state."""
        self.place: tuple[int, int, int] | None = None
        """Generation, rank and size, as it was told last."""
        self.is_late = False
        """Whether it has come to others that have begun before, and does not have their
        state yet: until then they answer nothing else."""

    def join(self) -> dict[str, Any]:
        """Waits for the next generation, as `--elastic-timeout` lets it.

        Returns:
            What `_native.init` must know of it.

        Raises:
            NoGenerationError: If there will be none.
        """
        self._others_wait = False
        try:
            own = {"join": self._number, "has_state": self.has_state}
            self._socket.sendall(json.dumps(own).encode() + b"\n")
        except OSError as error:
            raise NoGenerationError(f"ringrun is gone ({error})") from None
        while True:
            message = self._next(blocking=True)
            if message is None:
                raise NoGenerationError("ringrun is gone")
            if "end" in message:
                raise NoGenerationError(f"the job ends: {message['end']}")
            if "rank" in message:
                self.is_late = message["late"]
                self.place = message["generation"], message["rank"], message["size"]
                return _options_of(message)

    def note_joined(self) -> None:
        """The generation has begun."""
        self.has_state = not self.is_late

    def others_wait(self) -> bool:
        """Whether processes wait to join the next generation."""
        while (message := self._next(blocking=False)) is not None:
            self._others_wait = self._others_wait or "others_wait" in message
        return self._others_wait

    def _next(self, *, blocking: bool) -> dict[str, Any] | None:
        """None: there is none yet; where it blocks: there will be none."""
        while b"\n" not in self._unread:
            try:
                data = self._socket.recv(
                    _READ_NBYTES, 0 if blocking else socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


# ringrun keeps its end, too, for as long as the process lives.
_launcher: ElasticLauncher | None = None


def launcher_of(config: Config) -> ElasticLauncher:
    """The line to ringrun, made at the first call.

    Raises:
        NoGenerationError: If ringrun does not listen.
    """
    global _launcher
    if _launcher is None:
        assert config.elastic_socket is not None
        try:
            _launcher = ElasticLauncher(Path(config.elastic_socket), config.rank)
        except OSError as error:
            raise NoGenerationError(f"ringrun is gone ({error})") from None
    return _launcher


def is_elastic() -> bool:
    """Whether this process has joined a job that goes on when ranks are lost."""
    return _launcher is not None


def is_late() -> bool:
    """Whether this process must take the others' state before anything else."""
    return _launcher is not None and _launcher.is_late


def last_place() -> tuple[int, int, int] | None:
    """The last generation that this process was told to join, its rank and its size.

    None: it was told of none.
    """
    return None if _launcher is None else _launcher.place


def note_state() -> None:
    """This process has the state that the others have."""
    if _launcher is not None:
        _launcher.has_state, _launcher.is_late = True, False


def others_wait() -> bool:
    """Whether processes wait to join; never where the job is not elastic."""
    return _launcher is not None and _launcher.others_wait()


def _options_of(message: dict[str, Any]) -> dict[str, Any]:
    options = {name: message[name] for name in ("rank", "size", "generation")}
    if message["store"] is not None:
        host, port = split_address(message["store"])
        options |= {"store_host": host, "store_port": port}
    return options
