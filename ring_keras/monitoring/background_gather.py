"""Gathers what every rank has, while the ranks go on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from absl import logging

from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import gather_bytes

__all__ = ["BackgroundGather"]

# So many may be on their way before `put` waits: a rank that is this far ahead of
# the slowest has long been held up by the gradients.
_MOST_PENDING = 256

Receive = Callable[[list[tuple[int, bytes]]], None]


class BackgroundGather:
    """One collective for each content, in a thread of its own.

    Every rank puts as many contents, in the same order; then the n-th of one rank
    meets the n-th of the others. Nothing that fails here fails the ranks: once the
    communicator is broken, which their own collectives say too, contents are dropped.

    Args:
        name: Pairs the collectives with the other ranks'.
        communicator_id: The ranks that take part.
        receive: Is given, in that thread, each rank's number and content, in the order
            of ranks; must not raise.
        failed: Is told, in that thread, what ended the gathering.
    """

    def __init__(
        self,
        name: str,
        communicator_id: int,
        receive: Receive,
        failed: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._communicator_id = communicator_id
        self._receive = receive
        self._failed = failed
        self._contents: queue.Queue[bytes | None] = queue.Queue(_MOST_PENDING)
        # A daemon: a `fit` that raises does not come to `close`.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, content: bytes) -> None:
        """Gathers this one in turn."""
        self._put(content)

    def close(self) -> None:
        """Returns when all that was put has been gathered, or nothing more will be."""
        self._put(None)
        self._thread.join()

    def _put(self, content: bytes | None) -> None:
        while self._thread.is_alive():
            try:
                return self._contents.put(content, timeout=0.1)
            except queue.Full:
                pass

    def _run(self) -> None:
        while (content := self._contents.get()) is not None:
            try:
                gathered = gather_bytes(content, self._name, self._communicator_id)
            except RingKerasError as error:
                return self._failed(error)
            try:
                self._receive(gathered)
            except Exception as error:
                # Goes on: the others wait for this rank's part of the next one.
                logging.warning("ring_keras: %s are lost here: %r", self._name, error)
