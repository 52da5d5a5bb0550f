"""Processes of this host that come and go while the job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ring_keras.launch.crew import HostJob, LocalCrew
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.elastic_socket import ElasticSocket
from ring_keras.launch.launcher import Desk, Meet, Meeting
from ring_keras.launch.members import Members
from ring_keras.launch.places import Place
from ring_keras.launch.workers import Worker

__all__ = ["meet_elastic"]


class _ElasticCrew(LocalCrew):
    """Starts processes by number; which rank one is, it learns when it joins."""

    def __init__(
        self,
        size: int,
        job: HostJob,
        desk: Desk,
        socket_path: Path,
        begin: Callable[[], None],
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
        self._begin = begin

    def start(self, store_address: str) -> None:
        """Starts those that the job begins with."""
        self._begin()

    def add(self, number: int) -> Worker:
        """Starts one process. Must be called from the main thread."""
        place = Place(number, self._size, number, self._size, 0, 1)
        # An empty variable is an unset one: there is no store until all have joined.
        return self.start_one(
            place, "", more={"RING_KERAS_ELASTIC_SOCKET": str(self._socket_path)}
        )


def meet_elastic(options: ElasticOptions, job: HostJob) -> Meet:
    """For ranks on this host alone, whose number may change."""

    def meet(desk: Desk) -> Meeting:
        path = desk.token_file.with_name("elastic")
        members = Members(
            options,
            token=desk.token,
            encrypt=desk.options.encrypt,
            start=lambda number: crew.add(number),
            say=desk.output.say,
        )
        crew = _ElasticCrew(options.size, job, desk, path, members.begin)
        ElasticSocket(desk.loop, path, members.take)
        # Times run out without that anything happens.
        desk.loop.on_tick(lambda: None)
        desk.crews.append(crew)
        return Meeting(options.size, "127.0.0.1", members)

    return meet
