"""Ranks of a test that are processes of an MPI."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support import child
from support.fork_server import ForkedProcess
from support.mpi import Mpi

_START_S = 60.0


class MpiRanks:
    """Has mpirun start a door for each rank; see `support.mpi_door`.

    Args:
        mpi: Whose mpirun.
        size: Number of ranks.
        directory: For a socket, and for what mpirun prints.
        environment: Of mpirun.
    """

    def __init__(
        self, mpi: Mpi, size: int, directory: Path, environment: Mapping[str, str]
    ) -> None:
        assert mpi.bin_dir is not None
        path = directory / "doors"
        self._doors: dict[int, socket.socket] = {}
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            (directory / "mpirun").open("wb") as output,
        ):
            listener.bind(str(path))
            listener.listen(size)
            listener.settimeout(_START_S)
            command = [str(mpi.bin_dir / "mpirun"), *mpi.on_one_host, "-np", str(size)]
            self._mpirun = subprocess.Popen(
                [*command, sys.executable, "-m", "support.mpi_door", str(path)],
                env=dict(environment) | mpi.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while len(self._doors) < size:
                door, _ = listener.accept()
                self._doors[int(door.recv(64))] = door

    def start(
        self,
        rank: int,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[int],
    ) -> ForkedProcess:
        """Starts a rank; see `ForkServer.start`."""
        stdin_read, stdin_write = os.pipe()
        status_read, status_write = os.pipe()
        request = json.dumps(
            {
                "module": child.__name__,
                "arguments": list(arguments),
                "environment": dict(environment),
            }
        )
        door = self._doors[rank]
        try:
            passed = [stdin_read, *files, status_write]
            socket.send_fds(door, [request.encode()], passed)
            pid = int(door.recv(64))
        finally:
            os.close(stdin_read)
            os.close(status_write)
        return ForkedProcess(pid, os.fdopen(stdin_write, "wb"), status_read)

    def close(self) -> None:
        """Ends mpirun, and with it doors that still wait."""
        for door in self._doors.values():
            door.close()
        try:
            self._mpirun.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._mpirun.terminate()
            try:
                self._mpirun.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._mpirun.kill()
                self._mpirun.wait()
