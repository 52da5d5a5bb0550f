"""What ringrun reads of the hosts that an engine has found."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from ring_keras.engines.call_agent import AGENTS

__all__ = ["HostFiles"]

_CALL_AGENT = str(Path(__file__).with_name("call_agent.py"))


class HostFiles:
    """Hosts with a slot each, and where the agent of each waits.

    Args:
        directory: Only this user may enter it.
        secret: The file with what the agents must hear.
    """

    def __init__(self, directory: Path, secret: str) -> None:
        self.directory = directory
        self._secret = secret
        self._hosts = directory / "hosts"
        self._script = directory / "discover"
        self._script.write_text(
            f"#!/bin/sh\nexec cat {shlex.quote(str(self._hosts))}\n"
        )
        self._script.chmod(0o700)
        self.write({})

    def options(self) -> list[str]:
        """Have ringrun read them."""
        shell = [sys.executable, "-I", _CALL_AGENT, str(self.directory)]
        return [
            "--host-discovery-script",
            str(self._script),
            "--remote-shell",
            shlex.join(shell),
        ]

    def write(self, agents: Mapping[str, str]) -> None:
        """These are there now: host and port of each agent by its host's name."""
        told = {"agents": agents, "secret": self._secret, "sys_path": sys.path}
        self._replace(self.directory / AGENTS, json.dumps(told))
        self._replace(self._hosts, "".join(f"{name} slots=1\n" for name in agents))

    def _replace(self, path: Path, text: str) -> None:
        unfinished = path.with_name("unfinished")
        unfinished.write_text(text)
        unfinished.replace(path)
