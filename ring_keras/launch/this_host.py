"""Ranks that all run on this host."""

from __future__ import annotations

import sys

from ring_keras.launch.crew import HostJob
from ring_keras.launch.desk import Desk
from ring_keras.launch.elastic_host import ElasticSocket, start_process
from ring_keras.launch.elastic_members import ElasticMembers
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.members import FixedMembers, Meet, Members
from ring_keras.launch.places import places_of
from ring_keras.launch.workers import Worker

__all__ = ["meet_elastic", "meet_here"]

_STORE_HOST = "127.0.0.1"


def meet_here(size: int, job: HostJob) -> Meet:
    """For `size` ranks on this host alone."""

    def meet(desk: Desk) -> Members:
        desk.local_crew(places_of([size])[0], job)
        return FixedMembers(desk, size, _STORE_HOST)

    return meet


def meet_elastic(options: ElasticOptions, job: HostJob, slots: int | None) -> Meet:
    """For ranks on this host alone, whose number may change.

    Args:
        options: How.
        job: What they run.
        slots: How many there may be at a time; None: any number.
    """

    def meet(desk: Desk) -> Members:
        most = sys.maxsize if slots is None else slots
        own = _OwnSlots(desk, options.size, job, most)
        members = ElasticMembers(options, desk, own, _STORE_HOST)
        ElasticSocket(desk.loop, own.path, members.take)
        # Times run out without that anything happens.
        desk.loop.on_tick(lambda: None)
        return members

    return meet


class _OwnSlots:
    """Starts processes by number, on this host."""

    grows = False

    def __init__(self, desk: Desk, size: int, job: HostJob, slots: int) -> None:
        self.path = desk.token_file.with_name("elastic")
        """Where they ask who they are."""
        self._size = size
        self._slots = slots
        self._crew = desk.local_crew([], job)

    def free(self) -> int:
        """For how many more processes there is room."""
        return self._slots - sum(worker.running for worker in self._crew.workers)

    def add(self, number: int) -> Worker:
        """Starts one process. Must be called from the main thread."""
        return start_process(self._crew, number, self._size, self.path)
