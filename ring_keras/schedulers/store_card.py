"""What ranks must know of the job's store."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from ring_keras.network.host_id import boot_id

__all__ = ["StoreCard", "pid_namespace", "started_at"]

_TOKEN_NBYTES = 32
MAX_NBYTES = 4096


@dataclass(frozen=True)
class StoreCard:
    """Where the store listens, the job's secret, and which process serves it.

    Attributes:
        host: Its address.
        port: Its port.
        token: The secret, in hexadecimal digits.
        boot_id: Of the machine on which it runs.
        pid_namespace: In which its process number is what it is.
        pid: Its process number.
        started_at: When that process started, in ticks since the machine did: its
            number may be another's later.
    """

    host: str
    port: int
    token: str = dataclasses.field(repr=False)
    boot_id: str
    pid_namespace: str
    pid: int
    started_at: int

    @classmethod
    def of_this_process(cls, host: str, port: int, token: bytes) -> StoreCard:
        """The card of a store that this process serves."""
        pid = os.getpid()
        started = started_at(pid)
        assert started is not None
        namespace = pid_namespace()
        return cls(host, port, token.hex(), boot_id(), namespace, pid, started)

    def to_text(self) -> str:
        """As `from_text` reads it: one line, without spaces."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> StoreCard:
        """Reads a card.

        Raises:
            ValueError: If the text is none. It stays out of the message.
        """
        try:
            card = cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            raise ValueError("not a store's card") from None
        types = (str, int, str, str, str, int, int)
        values = dataclasses.astuple(card)
        if tuple(map(type, values)) != types or not 0 < card.port < 65536:
            raise ValueError("not a store's card")
        if len(card.secret()) != _TOKEN_NBYTES:
            raise ValueError("not a store's card")
        return card

    def secret(self) -> bytes:
        """The token itself."""
        return bytes.fromhex(self.token)

    def is_served(self) -> bool:
        """Whether its process still runs, or may: it is out of sight elsewhere."""
        if self.boot_id != boot_id() or self.pid_namespace != pid_namespace():
            return True
        return started_at(self.pid) == self.started_at


def pid_namespace() -> str:
    """Which processes this one can see; empty if that is not told."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def started_at(pid: int) -> int | None:
    """When a process started, in ticks; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name, in parentheses, may hold anything.
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
