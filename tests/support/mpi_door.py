"""One process that mpirun has started: runs a rank of a test in its place.

`python -m support.mpi_door SOCKET`. Tests start a job's ranks one by one, each with an
environment and files of its own, which no mpirun does. So mpirun starts doors: each
connects to the test, says which of MPI's processes it is, gets all that a rank is to
have, and starts it with what MPI has given the door: variables and descriptors. The
rank's parent is a process in a session of its own: where a rank ends without MPI's
end, as one that raises does, mpirun kills all doors, and the test is to hear how each
rank has ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from support.fork_server import MAX_REQUEST_BYTES, STATUS

# Where MPIs tell a process its number.
_NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _keep(request: dict[str, Any], harness: socket.socket, files: list[int]) -> None:
    """Starts the rank, and says how it ends, whatever becomes of the door."""
    stdin, stdout, stderr, done, status = files
    os.set_inheritable(done, True)
    words = [str(os.getpid()), str(done), *request["arguments"]]
    rank = subprocess.Popen(
        [sys.executable, "-m", request["module"], *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=os.environ | request["environment"],
        close_fds=False,  # MPI's.
        start_new_session=True,
    )
    for descriptor in (stdin, stdout, stderr, done):
        os.close(descriptor)
    harness.send(str(rank.pid).encode())
    code = rank.wait()
    os.write(status, STATUS.pack(-code if code < 0 else code << 8))


def main(path: str) -> int:
    """Runs the rank, and ends as it does."""
    own = next(int(os.environ[name]) for name in _NUMBERS if name in os.environ)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as harness:
        harness.connect(path)
        harness.send(str(own).encode())
        content, files, _, _ = socket.recv_fds(harness, MAX_REQUEST_BYTES, 8)
        if not content:  # The test is over.
            return 0
        # Some mpiruns end doors as soon as MPI has ended in one rank or in all.
        keeper = os.fork()
        if keeper == 0:
            try:
                os.setsid()
                _keep(json.loads(content), harness, files)
            finally:
                os._exit(0)
        for descriptor in files:
            os.close(descriptor)
        harness.close()
        os.waitpid(keeper, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
