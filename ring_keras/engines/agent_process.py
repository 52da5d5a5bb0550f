"""An agent of ringrun's that an engine's worker starts, and that ends with it.

Run as a script, `python -I agent_process.py DESCRIPTOR`, by `AgentProcess`. On that
descriptor it is told where to listen and what its ranks are to know, and says at which
port it waits.
"""

import os
import socket
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path


def main() -> int:
    """Serves launchers' calls until the worker ends."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    sys.path[:], parent_pid, directory = connection.recv()
    from ring_keras.engines.ends_with_parent import become_guarded, become_shielded
    from ring_keras.launch.listening_agent import serve_calls

    become_shielded(parent_pid)
    become_guarded(Path(directory))
    tempfile.tempdir = directory  # What it leaves there is removed, too.
    address, token = connection.recv()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    connection.send(listener.getsockname()[1])
    connection.close()
    return serve_calls(listener, token)


if __name__ == "__main__":
    sys.exit(main())
