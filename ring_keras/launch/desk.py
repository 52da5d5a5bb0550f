"""What the launcher has for those that make hosts ready."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ring_keras.config import share_openssl
from ring_keras.launch.agent_line import RunUntil
from ring_keras.launch.connection import BEYOND_HEARTBEAT_S
from ring_keras.launch.crew import Crew
from ring_keras.launch.elastic_options import ElasticOptions
from ring_keras.launch.job_watch import JobWatch
from ring_keras.launch.local_crew import HostJob, LocalCrew
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import OutputPump
from ring_keras.launch.tenure import Tenure
from ring_keras.launch.watch_options import WatchOptions
from ring_keras.launch.workers import Worker

if TYPE_CHECKING:
    from ring_keras import _native

__all__ = ["CannotStartError", "Desk", "LaunchOptions", "require_route"]


@dataclass(frozen=True)
class LaunchOptions:
    """How the launcher treats a job, whatever it runs.

    Attributes:
        grace_period_s: From asking ranks to end until killing them.
        output_directory: Gets each rank's output in files, if not None.
        colour: Whether to colour prefixes on a terminal.
        verbose: Whether to tell of each start and end.
        timestamps: Whether each line begins with the time.
        raw: Whether what all ranks say when they start, and tracebacks that they
            share, are shown of each.
        watch: What it tells besides the ranks' output.
        encrypt: Whether what ranks say to the store is encrypted.
        expects_join: Whether the command is one that trains, as far as its name tells.
        heartbeat_s: How long a rank may be silent.
        all_silent_s: The same for all ranks, or all hosts, at once: who hears nobody
            is cut off itself, and the ranks may train on.
        elastic: How the number of ranks may change; None: it does not.
        tenure: What another launcher can take over; None: none can.
    """

    grace_period_s: float
    output_directory: Path | None
    colour: bool
    verbose: bool
    timestamps: bool
    raw: bool
    watch: WatchOptions
    encrypt: bool
    heartbeat_s: float
    all_silent_s: float
    elastic: ElasticOptions | None = None
    expects_join: bool = False
    tenure: Tenure | None = None

    @property
    def kept_s(self) -> float:
        """For how long an agent that is lost may keep its ranks for another launcher.

        It may have to find out that this one is silent, then it waits for the time of
        an outage, and then it asks its ranks to end.
        """
        return 2 * (self.all_silent_s + BEYOND_HEARTBEAT_S) + self.grace_period_s


@dataclass(frozen=True)
class Desk:
    """What the launcher has for those that make hosts ready.

    Attributes:
        options: How it treats the job.
        loop: Calls back.
        token: The job's secret.
        token_file: Holds it.
        output: Takes what ranks print.
        watch: Is told what happens.
        crews: Gets one for each host.
        on_end: Gets each worker that has ended.
        interrupt: Ends the job, as a signal of that number to the launcher does.
        on_superseded: Gets the term of a launcher that has taken the job over.
        run_until: Turns the loop until a condition holds; False if it did not
            within some seconds, or if somebody ended the job.
    """

    options: LaunchOptions
    loop: Loop
    token: bytes
    token_file: Path
    output: OutputPump
    watch: JobWatch
    crews: list[Crew]
    on_end: Callable[[Worker], None]
    interrupt: Callable[[int], None]
    on_superseded: Callable[[int], None]
    run_until: RunUntil

    def local_crew(self, slots: int, job: HostJob) -> LocalCrew:
        """Ranks of this host, at most so many; one of the crews from now on."""
        crew = LocalCrew(
            slots,
            job,
            self.loop,
            self.token_file,
            self.output,
            self.on_end,
            report_pipe=self.watch.report_pipe,
        )
        self.crews.append(crew)
        return crew

    def open_store(self, host: str, size: int, generation: int) -> _native.StoreServer:
        """A store for so many ranks, which listens on that address of this host.

        Raises:
            OSError: If it cannot; or RuntimeError.
        """
        from ring_keras import _native

        options = self.options
        if options.encrypt:
            share_openssl()
        return _native.StoreServer(
            *(host, 0, size, generation, self.token, options.encrypt),
            heartbeat_timeout_s=options.heartbeat_s,
            all_silent_timeout_s=options.all_silent_s,
        )


class CannotStartError(Exception):
    """Why there will be no job, in words."""


def require_route(host: str) -> None:
    """Raises CannotStartError where none of the ranks of this host could join."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as line:
        try:
            line.connect((host, 9))  # Nothing is sent: the kernel looks for a way.
        except OSError as error:
            raise CannotStartError(
                f"this host does not reach its own address {host}: {error.strerror}. "
                "Is the interface lo up? `ip link set lo up`"
            ) from None
