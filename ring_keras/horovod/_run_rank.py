"""One rank of `ring_keras.horovod.run`: `python -m` this, with its directory."""

import multiprocessing.spawn
import pickle
import sys
from pathlib import Path

from ring_keras.config import Config
from ring_keras.horovod._run import CALL, result_file


def main(directory: Path) -> None:
    """Makes the call, and leaves the result."""
    path, script, call = pickle.loads((directory / CALL).read_bytes())
    sys.path[:] = path
    if script is not None:
        # As the standard library does it for its own processes.
        multiprocessing.spawn.import_main_path(script)
    func, args, kwargs = pickle.loads(call)
    rank = Config.from_environment().rank
    result_file(directory, rank).write_bytes(pickle.dumps(func(*args, **kwargs)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
