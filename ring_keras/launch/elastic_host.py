"""An agent's part in an elastic job, whose processes come one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_keras.launch.crew import LocalCrew
from ring_keras.launch.elastic_socket import ElasticSocket, Tell
from ring_keras.launch.loop import Loop
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

__all__ = ["ElasticHost", "start_process"]


class ElasticHost:
    """Passes on what this host's processes and the launcher say to each other.

    Args:
        loop: Calls back.
        path: Where processes ask.
        send: Sends a message to the launcher.
    """

    def __init__(
        self, loop: Loop, path: Path, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self.path = path
        self._send = send
        self._tells: dict[int, Tell] = {}
        ElasticSocket(loop, path, self._take)

    def tell(self, number: int, message: dict[str, Any]) -> None:
        """Gives a process the launcher's message."""
        if number in self._tells:
            self._tells[number](message)

    def _take(self, number: int, has_state: bool, tell: Tell) -> None:
        self._tells[number] = tell
        self._send({"type": "join", "rank": number, "has_state": has_state})


def start_process(crew: LocalCrew, number: int, size: int, socket_path: Path) -> Worker:
    """Starts a process of an elastic job. Must be called from the main thread.

    Which rank it is, it learns when it joins.

    Args:
        crew: Of this host.
        number: The process's, which it keeps.
        size: With how many the job begins.
        socket_path: Where it asks.
    """
    place = Place(number, size, number, size, 0, 1)
    # An empty variable is an unset one: there is no store until all have joined.
    return crew.start_one(
        place, "", more={"RING_KERAS_ELASTIC_SOCKET": str(socket_path)}
    )
