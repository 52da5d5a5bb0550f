"""Starts ranks from a process that has imported TensorFlow already.

Importing TensorFlow takes seconds of a core, a test often less. TensorFlow does
not survive a fork once it has computed something; imported only, it has no
threads, and it does. So one process per pytest imports it, and this package, whose
import is a third of a rank's start, and forks a rank whenever one is asked for: a
process of its own, in a session of its own, which ends as `support.child` says.
What a rank finds in its environment only while it starts, such as LD_PRELOAD, needs a
fresh one.

`python -m support.fork_server SOCKET_FD PARENT_PID` is the server.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from support import child

# A rank's variables are its own, whatever the server started with, if their
# names begin so: who reads them does so after TensorFlow's import.
READ_LATE = (
    *("RING_KERAS_", "TESTS_", "NCCL_", "TF_NUM_", "PYTHONPATH", "XDG_CACHE_HOME"),
)

STATUS = struct.Struct("i")
MAX_REQUEST_BYTES = 1 << 18


class ForkedProcess:
    """What `subprocess.Popen` offers, as far as ranks need it."""

    def __init__(self, pid: int, stdin: IO[bytes], status_fd: int) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._status_fd = status_fd

    def wait(self) -> int:
        """The exit code, negative for a signal; one thread calls it, once."""
        with os.fdopen(self._status_fd, "rb") as status:
            written = status.read()
        if not written:
            raise RuntimeError("the fork server ended before its ranks did")
        self.returncode = os.waitstatus_to_exitcode(*STATUS.unpack(written))
        return self.returncode


class ForkServer:
    """The server as pytest sees it; started by the first rank.

    Args:
        environment: Gives the server's own. Asked for by the first rank: until then
            modules are imported, and TensorFlow's import sets variables.
    """

    def __init__(self, environment: Callable[[], Mapping[str, str]]) -> None:
        self._environment_now = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a rank with that environment may be forked, and should."""
        if "TESTS_WITHOUT_TENSORFLOW" in environment:
            return False
        return _read_early(environment) == _read_early(self._environment)

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        return dict(self._environment_now())

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        files: Sequence[int],
        module: str = child.__name__,
    ) -> ForkedProcess:
        """Forks a rank.

        Args:
            arguments: What `module` gets after the server's pid and a descriptor.
            environment: All of it.
            files: Its standard output and error, and that descriptor.
            module: Its `main(arguments)` is what the rank runs.
        """
        self.launch()
        assert self._socket is not None
        stdin_read, stdin_write = os.pipe()
        status_read, status_write = os.pipe()
        passed = [stdin_read, *files, status_write]
        request = json.dumps(
            {
                "module": module,
                "arguments": arguments,
                "environment": dict(environment),
            }
        )
        try:
            socket.send_fds(self._socket, [request.encode()], passed)
            answer = self._socket.recv(64)
        finally:
            os.close(stdin_read)
            os.close(status_write)
        if not answer:
            raise RuntimeError("the fork server has ended; its output says why")
        stdin = os.fdopen(stdin_write, "wb")
        return ForkedProcess(int(answer), stdin, status_read)

    def close(self) -> None:
        """Ends the server; ranks that live on end with it."""
        if self._process is None:
            return
        assert self._socket is not None
        self._socket.close()
        self._process.wait()
        self._process = None

    def launch(self) -> None:
        """Starts the server, if that has not been done."""
        if self._process is not None:
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(READ_LATE) and name != "PYTEST_CURRENT_TEST"
    }


class _Server:
    """One thread, so that a fork has all there is."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._status_fds: dict[int, int] = {}

    def serve(self) -> Callable[[], int] | None:
        """Until the other side hangs up; in a rank, returns what it runs."""
        requests_fd = self._requests.fileno()
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write)
        while True:
            ready, _, _ = select.select([requests_fd, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._report_ends()
            if requests_fd in ready:
                content, files, _, _ = socket.recv_fds(
                    self._requests, MAX_REQUEST_BYTES, 8
                )
                if not content:
                    return None
                rank = self._fork(json.loads(content), files)
                if rank is not None:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake_read)
                    os.close(wake_write)
                    return rank

    def _fork(
        self, request: dict[str, Any], files: list[int]
    ) -> Callable[[], int] | None:
        *own, done_fd, status_fd = files
        server_pid = os.getpid()
        settled_read, settled_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for fd in (settled_read, settled_write, status_fd):
                os.close(fd)
            for fd in self._status_fds.values():
                os.close(fd)
            self._requests.close()
            return lambda: _become_rank(request, own, done_fd, server_pid)
        os.close(settled_write)
        # Whoever kills the rank kills its group, which exists once this ends.
        os.read(settled_read, 1)
        os.close(settled_read)
        for fd in (*own, done_fd):
            os.close(fd)
        self._status_fds[pid] = status_fd
        self._requests.send(str(pid).encode())
        return None

    def _report_ends(self) -> None:
        while self._status_fds:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            status_fd = self._status_fds.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(status_fd, STATUS.pack(status))
            os.close(status_fd)


def _become_rank(
    request: dict[str, Any], standard: list[int], done_fd: int, server_pid: int
) -> int:
    for target, fd in enumerate(standard):
        os.dup2(fd, target)
        os.close(fd)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    after = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in after if path and path not in before]
    # Else all ranks would draw the same numbers. Python does so for its own.
    importlib.import_module("numpy").random.seed()
    module = importlib.import_module(request["module"])
    return int(module.main([str(server_pid), str(done_fd), *request["arguments"]]))


def main() -> int:
    """The server; in a rank, the rank."""
    socket_fd, parent_pid = (int(word) for word in sys.argv[1:])
    child.die_with_parent(parent_pid)
    os.set_inheritable(socket_fd, False)
    for name in ("tensorflow", "keras", "ring_keras"):
        module = importlib.import_module(name)
    for name in module.__all__:  # Which it imports when they are first used.
        getattr(module, name)
    # What has been imported is no rank's to look through, again and again, for
    # garbage: that takes a second of each rank's end alone.
    gc.freeze()
    requests = socket.socket(fileno=socket_fd)
    rank = _Server(requests).serve()
    return 0 if rank is None else rank()


if __name__ == "__main__":
    sys.exit(main())
