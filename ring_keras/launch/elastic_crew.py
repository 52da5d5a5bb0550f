"""Processes of this host that come and go while the job runs."""

from __future__ import annotations

import sys
from pathlib import Path

from ring_keras.launch.crew import HostJob, LocalCrew
from ring_keras.launch.elastic_host import start_process
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.elastic_socket import ElasticSocket
from ring_keras.launch.launcher import Desk, Meet, Meeting
from ring_keras.launch.members import Members
from ring_keras.launch.workers import Worker

__all__ = ["meet_elastic"]

_STORE_HOST = "127.0.0.1"


class _ElasticCrew(LocalCrew):
    """Starts processes by number, on this host."""

    grows = False

    def __init__(
        self, size: int, job: HostJob, desk: Desk, socket_path: Path, slots: int
    ) -> None:
        super().__init__(
            [],
            job,
            desk.token_file,
            desk.output,
            desk.on_end,
            report_pipe=desk.report_pipe,
        )
        self._size = size
        self._socket_path = socket_path
        self._slots = slots

    def free(self) -> int:
        """For how many more processes there is room."""
        return self._slots - sum(worker.running for worker in self.workers)

    def add(self, number: int) -> Worker:
        """Starts one process. Must be called from the main thread."""
        return start_process(self, number, self._size, self._socket_path)


def meet_elastic(options: ElasticOptions, job: HostJob, slots: int | None) -> Meet:
    """For ranks on this host alone, whose number may change.

    Args:
        options: How.
        job: What they run.
        slots: How many there may be at a time; None: any number.
    """

    def meet(desk: Desk) -> Meeting:
        path = desk.token_file.with_name("elastic")
        most = sys.maxsize if slots is None else slots
        crew = _ElasticCrew(options.size, job, desk, path, most)
        members = Members(options, desk, crew, _STORE_HOST)
        ElasticSocket(desk.loop, path, members.take)
        # Times run out without that anything happens.
        desk.loop.on_tick(lambda: None)
        desk.crews.append(crew)
        return Meeting(options.size, _STORE_HOST, members)

    return meet
