"""Where ringrun starts processes of an elastic job: below an engine's worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Pipe
from pathlib import Path

from ring_keras.engines.call_files import CallFiles
from ring_keras.engines.call_rank import DIRECTORY, PYTHON
from ring_keras.engines.outcomes import Outcome

__all__ = ["AgentHost"]

_SCRIPT = str(Path(__file__).with_name("agent_process.py"))
_START_S = 60.0


class AgentHost:
    """Starts an agent that waits for ringrun's call; it ends with this process.

    Args:
        address: Of this host, where it listens.
        token: What ringrun must know to be answered.
        call: The function that its processes run, pickled.
        serializer: The module whose `dumps` pickles what that returns.
        env: Variables that these get.

    Attributes:
        port: Where it waits.

    Raises:
        RuntimeError: If it does not start. It has said why itself.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        call: bytes,
        serializer: str,
        env: Mapping[str, str],
    ) -> None:
        # Only this user may enter it. The agent's guard removes it.
        self._directory = Path(tempfile.mkdtemp(prefix="ring_keras-"))
        self._files = CallFiles(self._directory)
        try:
            self._files.write_call(call, serializer, is_elastic=True)
            ours, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", _SCRIPT, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    env={
                        **os.environ,
                        **env,
                        DIRECTORY: str(self._directory),
                        PYTHON: sys.executable,
                    },
                    pass_fds=[theirs.fileno()],
                    # Signals to this process's group are for the engine's own.
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        with ours:
            try:
                ours.send((sys.path, os.getpid(), str(self._directory)))
                ours.send((address, token))
                if not ours.poll(_START_S):
                    raise EOFError
                self.port = int(ours.recv())
            except (EOFError, OSError):
                self.end()
                raise RuntimeError(
                    f"ringrun's agent on {address} did not start: see above for why"
                ) from None

    def is_running(self) -> bool:
        """Whether the agent is there."""
        return self._process.poll() is None

    def outcomes(self) -> list[Outcome]:
        """Of each process that had the time to say it."""
        return self._files.outcomes()

    def end(self) -> None:
        """Kills the agent, and all that is below it."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
