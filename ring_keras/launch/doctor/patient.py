"""A host's agent, which answers what the doctor asks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from ring_keras._version import __version__
from ring_keras.launch.frames import Message, Output, ProtocolError, field
from ring_keras.launch.loop import Loop
from ring_keras.launch.output import say
from ring_keras.launch.ssh import SshLine, SshOptions

__all__ = ["Patient"]


class Patient(SshLine):
    """The line to an agent that starts no ranks.

    Args:
        host: As ssh takes it; None: this host.
        name: How messages call it.
        options: For ssh.
        loop: Calls back.

    Raises:
        OSError: If ssh cannot be started.
    """

    def __init__(
        self, host: str | None, name: str, options: SshOptions, loop: Loop
    ) -> None:
        super().__init__(host, name, options, loop, say)
        self.on_message = self._take_answer
        self.is_here = host is None
        """Whether it is the host on which ringrun runs."""
        self._options = options
        self.answer: dict[str, Any] | None = None
        """To the last question; None until it has come."""

    def how_to_look(self) -> str:
        """The command that shows why it is gone, or fixes that."""
        options = self._options
        agent = "-m ring_keras.launch.agent </dev/null"
        if self.is_here:
            return f"{sys.executable} {agent}"
        if options.by_ssh:
            if self.hello is not None and self.version_problem() is not None:
                pip = f"{options.python} -m pip install ring-keras=={__version__}"
                return f"ssh {self.name} {pip}"
            return f"ssh -o BatchMode=yes {self.name} true"
        if options.waiting_port is not None:
            listen = f"{self.name}:{options.waiting_port}"
            program = "python -m ring_keras.launch.listening_agent"
            return f"{program} --listen {listen} --secret-file {options.secret_file}"
        start = shlex.join([*options.instead, self.name, options.python])
        return f"{start} {agent}"

    def begin_check(self, **surroundings: Any) -> None:
        """Has the agent start what answers, in the surroundings of a rank."""
        self.send({"type": "check", **surroundings})

    def ask(self, question: Mapping[str, Any]) -> None:
        """Asks; the answer to the question before must have come."""
        self.answer = None
        self.send({"type": "question", "question": dict(question)})

    def _take_answer(self, message: Message) -> None:
        if isinstance(message, Output) or message["type"] != "answer":
            raise ProtocolError("it shall answer, and do nothing else")
        self.answer = field(message, "answer", dict)
