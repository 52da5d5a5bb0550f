"""Ranks that all run on this host, for as long as the job does."""

from __future__ import annotations

from ring_keras.launch.crew import HostJob, LocalCrew
from ring_keras.launch.launcher import Desk, Meet, Meeting
from ring_keras.launch.places import places_of

__all__ = ["meet_here"]


def meet_here(size: int, job: HostJob) -> Meet:
    """For `size` ranks on this host alone."""

    def meet(desk: Desk) -> Meeting:
        places = places_of([size])[0]
        desk.crews.append(
            LocalCrew(
                places,
                job,
                desk.token_file,
                desk.output,
                desk.on_end,
                report_pipe=desk.report_pipe,
            )
        )
        return Meeting(size, "127.0.0.1")

    return meet
