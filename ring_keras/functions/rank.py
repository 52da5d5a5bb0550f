"""One rank of `ring_keras.run`. Run as a script, `python rank.py DIRECTORY`."""

import linecache
import os
import pickle
import socket
import sys
from dataclasses import replace
from pathlib import Path


def main(directory: Path) -> None:
    """Calls the function, and leaves how that ended."""
    with (directory / "call").open("rb") as file:
        # First of all: it says where the modules are of which the call consists.
        sys.path[:], sys.argv[:], cells = pickle.load(file)
        linecache.cache.update(cells)

        import cloudpickle

        from ring_keras.config import Config
        from ring_keras.engines.outcomes import Outcome, failure_of
        from ring_keras.functions.call_files import CallFiles

        files, rank = CallFiles(directory), Config.from_environment().rank
        where = f"host {socket.gethostname()}, pid {os.getpid()}"
        try:
            fn, args, kwargs = pickle.load(file)
            result = cloudpickle.dumps(fn(*args, **kwargs))
        except BaseException as error:
            files.write_outcome(rank, replace(failure_of(error), where=where))
            sys.excepthook = lambda *_: None  # The caller shows it.
            raise
    files.write_outcome(rank, Outcome(where=where, result=result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
