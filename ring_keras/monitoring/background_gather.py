"""Gathers what every rank has, while the ranks go on."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable

from absl import logging

from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import gather_bytes
from ring_keras.job.job import Job, PerJob, current_job

__all__ = ["BackgroundGather", "end_gathers"]

# So many may be on their way before `put` waits: a rank that is this far ahead of
# the slowest has long been held up by the gradients.
_MOST_PENDING = 256
# Of a file system that hangs, for instance; the thread is a daemon.
_LAST_WRITE_S = 5.0

Receive = Callable[[list[tuple[int, bytes]]], None]

# By communicator: how many have begun.
_begun: PerJob[defaultdict[int, int]] = PerJob(lambda: defaultdict(int))
# Those whose threads run.
_running: PerJob[weakref.WeakSet[BackgroundGather]] = PerJob(weakref.WeakSet)


class BackgroundGather:
    """One collective for each content, in a thread of its own.

    Every rank makes as many of these, in the same order, and puts as many contents;
    then the n-th of one rank meets the n-th of the others. Nothing that fails here
    fails the ranks: once the communicator is broken, which their own collectives say
    too, contents are dropped; what `receive` or `ended` raises is logged.

    Args:
        name: For people; the collectives' is made of it.
        communicator_id: The ranks that take part.
        receive: Is given, in that thread, each rank's number and content, in the order
            of ranks.
        ended: Is told, in that thread, that no more come, and what ended the
            gathering, if it was an error.
    """

    def __init__(
        self,
        name: str,
        communicator_id: int,
        receive: Receive,
        ended: Callable[[Exception | None], None],
    ) -> None:
        job = current_job()
        begun = _begun.of(job)
        begun[communicator_id] += 1
        # What another one, of a `fit` that raised, has left does not meet this one's.
        self._name = f"{name}/{begun[communicator_id]}"
        self._communicator_id = communicator_id
        self._receive = receive
        self._ended = ended
        # Simple, because a finalizer, in the midst of anything, may call `end`.
        self._contents: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MOST_PENDING)
        # A daemon: a rank that is ended by a signal does not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _running.of(job).add(self)

    def put(self, content: bytes) -> None:
        """Gathers this one in turn."""
        while self._thread.is_alive():
            if self._room.acquire(timeout=0.1):
                return self._contents.put(content)

    def end(self) -> None:
        """Nothing more will be put. What has been is gathered; nobody waits for it."""
        self._contents.put(None)

    def close(self, timeout_s: float | None = None) -> None:
        """Returns when all that was put has been gathered, or nothing more will be.

        Args:
            timeout_s: Then it returns in any case.
        """
        self.end()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        error = self._gather_all()
        try:
            self._ended(error)
        except Exception as of_user:
            logging.warning("ring_keras: the end of %s: %r", self._name, of_user)

    def _gather_all(self) -> Exception | None:
        while (content := self._contents.get()) is not None:
            self._room.release()
            try:
                gathered = gather_bytes(content, self._name, self._communicator_id)
            except RingKerasError as error:
                return error
            try:
                self._receive(gathered)
            except Exception as error:
                # Goes on: the others wait for this rank's part of the next one.
                logging.warning("ring_keras: %s is lost here: %r", self._name, error)
        return None


def end_gathers(job: Job) -> None:
    """Those of a `fit` that raised, when this rank has left the job: none goes on."""
    for gather in list(_running.of(job)):
        gather.close(_LAST_WRITE_S)
