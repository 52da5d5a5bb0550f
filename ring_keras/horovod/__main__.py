"""`python -m ring_keras.horovod train.py`: runs a script that imports Horovod.

As `python train.py`, or `python -m train` for `python -m ring_keras.horovod -m train`.
"""

import runpy
import sys
from pathlib import Path

from ring_keras.horovod._import_hook import install

_USAGE = "usage: python -m ring_keras.horovod [-m MODULE | SCRIPT] [argument ...]"


def main() -> None:
    """Becomes the script."""
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(_USAGE)
    install()
    sys.argv = arguments
    if as_module:
        # Python has put the working directory first already, for `-m`.
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
