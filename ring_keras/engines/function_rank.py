"""The process of a rank that runs a function.

Run as a script, `python function_rank.py DESCRIPTOR`, by FunctionProcess, which
tells it on that descriptor what to do, and is told how it went.
"""

import os
import sys
from multiprocessing.connection import Connection


def main() -> None:
    """Does what it is told until the function has ended."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    # So that modules are found where the engine's worker has found them.
    _, sys.path[:] = connection.recv()
    from ring_keras.engines.ends_with_parent import become_guarded
    from ring_keras.engines.function_orders import FunctionOrders

    become_guarded()
    connection.send(os.getpid())
    FunctionOrders(connection).follow()


if __name__ == "__main__":
    try:
        main()
    except (EOFError, ConnectionError):
        sys.exit("ring_keras: the engine's worker has given this rank up")
