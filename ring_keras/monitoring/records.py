"""What rank 0 writes into TensorBoard's files for the page "Ring".

Every record is a JSON text in a tensor summary of the plugin `ring`. TensorBoard keeps
about ten tensors of a tag and drops others by chance, so a long series goes over many
tags of a few records each: `ring/rows/1a2b3c/0004` holds the 33rd to the 40th of the
session that began at Unix second 0x1a2b3c. What matters only as it is now,
such as the plan of buckets, has one tag.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = [
    "EVENTS",
    "PLUGIN",
    "ROWS",
    "STEPS",
    "TOTALS",
    "VERSION",
    "Series",
    "Thinning",
    "decode_record",
    "encode_record",
    "kind_of_tag",
    "session_of_tag",
]

PLUGIN: Final = "ring"
VERSION: Final = b"1"
"""In the plugin data of each tag; files with another one are not read."""

# Kinds of records.
ROWS: Final = "rows"
"""An `Update`: what each rank did since the last one."""
STEPS: Final = "steps"
"""One step, with each rank's collectives."""
EVENTS: Final = "events"
"""A list of events: objects with `time`, `rank`, `kind` and `text`."""
TOTALS: Final = "totals"
"""Bandwidths and buckets of the job so far; the last one counts."""

_RECORDS_PER_TAG = 8


def encode_record(content: Any) -> bytes:
    """As JSON, without spaces."""
    return json.dumps(content, separators=(",", ":")).encode()


def decode_record(content: bytes) -> Any:
    """What `encode_record` wrote."""
    return json.loads(content)


def kind_of_tag(tag: str) -> str | None:
    """Which kind of records it holds; None if it is not one of ours."""
    parts = tag.split("/")
    if len(parts) < 2 or parts[0] != PLUGIN:
        return None
    return parts[1]


def session_of_tag(tag: str) -> int:
    """Which session's records it holds, of those of ours; the later the larger.

    0 for what has one tag.
    """
    parts = tag.split("/")
    return int(parts[2], 16) if len(parts) > 2 else 0


class Series:
    """The tags of a series of records.

    Args:
        kind: Of its records.
        began_at: Unix time at which this session began.
    """

    def __init__(self, kind: str, began_at: float) -> None:
        self._prefix = f"{PLUGIN}/{kind}/{int(began_at * 1000):x}"
        self._count = 0

    def next_tag(self) -> str:
        """For one more record."""
        index = self._count // _RECORDS_PER_TAG
        self._count += 1
        return f"{self._prefix}/{index:04d}"


class Thinning:
    """When to write the next record, so that a long run has not too many.

    A record covers at least this part of the time since the session began, so the
    number of records grows with the logarithm of time: some 2,500 in a week.

    Args:
        began_at: In seconds, of any clock.
        part: Of the time so far.
    """

    def __init__(self, began_at: float, part: float = 1 / 200) -> None:
        self._began_at = began_at
        self._part = part
        self._last = began_at

    def is_due(self, now: float) -> bool:
        """Whether one is; then the next one is later."""
        if now - self._last < self._part * (now - self._began_at):
            return False
        self._last = now
        return True
