"""`python -m ring_keras.launch.doctor.host_program`: looks at this host.

Reads questions from its standard input, a line of JSON each, and answers each with a
line on its standard output. Ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ring_keras.launch.doctor.finding import as_json
from ring_keras.launch.doctor.host.examine import examine
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.host.software import facts
from ring_keras.launch.doctor.interfaces import interface_of, link_speed, mtu_of
from ring_keras.launch.doctor.job_shape import JobShape
from ring_keras.launch.doctor.speed import measure, reaches
from ring_keras.launch.doctor.speed_server import SpeedServer
from ring_keras.network.addresses import own_addresses

__all__ = ["main"]

_THREADS = 64


class _Host:
    """Answers questions."""

    def __init__(self) -> None:
        self._server: SpeedServer | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one."""
        what = question["what"]
        if what == "examine":
            findings = examine(JobShape.from_json(question["job"]))
            return {"findings": [as_json(finding) for finding in findings]}
        if what == "tell facts":
            return {"facts": facts()}
        if what == "tell time":
            return {"time": time.time()}
        if what == "listen":
            addresses = own_addresses(config().interfaces or ())
            self._server = SpeedServer(addresses, question["key"])
            return {"places": [_described(*place) for place in self._server.addresses]}
        if what == "reach":
            return {"reached": _reached(question["hosts"], question["key"])}
        if what == "measure":
            host, port = question["address"]
            speed = measure(
                host,
                port,
                question["key"],
                streams=config().tcp_streams,
                lasts_s=question["lasts_s"],
            )
            return {"measured": speed.measured()}
        raise ValueError(f"nobody asks {what!r}")


def _described(address: str, port: int) -> list[Any]:
    """As `between.networks.Listener` has it."""
    interface = interface_of(address)
    return [address, port, interface, mtu_of(interface), link_speed(interface)]


def _reached(hosts: Mapping[str, list[list[Any]]], key: str) -> dict[str, list[str]]:
    """Of each host, the addresses at which it answers."""
    tried = [(host, *place) for host, places in hosts.items() for place in places]
    reached: dict[str, list[str]] = {host: [] for host in hosts}
    with ThreadPoolExecutor(min(len(tried), _THREADS) or 1) as threads:
        answers = threads.map(lambda place: reaches(place[1], place[2], key), tried)
        for (host, address, _), there in zip(tried, answers, strict=True):
            if there:
                reached[host].append(address)
    return reached


def main() -> int:
    """Answers until nobody asks any more."""
    # What a library prints must not fall between the answers.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        host = _Host()
        for line in sys.stdin:
            try:
                answer = host.answer(json.loads(line))
            except Exception as error:
                answer = {"problem": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
