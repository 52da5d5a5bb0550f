"""A process of a job that calls a function: `python call_rank.py DIRECTORY`.

ringrun starts it. In the directory it finds the call, and leaves how that ended.
"""

import importlib
import linecache
import os
import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Where ringrun starts it on another host, its agent knows these.
DIRECTORY = "RING_KERAS_ENGINE_DIR"
PYTHON = "RING_KERAS_ENGINE_PYTHON"


def main(directory: Path) -> None:
    """Calls the function; what it raises is raised here."""
    for name in (DIRECTORY, PYTHON):
        os.environ.pop(name, None)
    number = int(os.environ["RING_KERAS_RANK"])
    with (directory / "call").open("rb") as file:
        # First of all: it says where the modules are of which the call consists.
        told = pickle.load(file)
        sys.path[:] = told["sys_path"]
        linecache.cache.update(told["cells"])
        is_elastic = told["argv"] is None
        if is_elastic:
            os.chdir(told["directory"])
        else:
            sys.argv[:] = told["argv"]
        from ring_keras.engines.outcomes import Outcome, failure_of

        def leave(outcome: Outcome) -> None:
            where = f"host {socket.gethostname()}, pid {os.getpid()}"
            own = replace(outcome, where=where, number=number, place=_last_place())
            own.write(directory / f"{number}.outcome")

        try:
            dumps = importlib.import_module(told["serializer"]).dumps
            call = pickle.load(file)
            result = dumps(_returned_by(call) if is_elastic else call())
        except BaseException as error:
            leave(failure_of(error))
            if not is_elastic:
                sys.excepthook = lambda *_: None  # The caller shows it.
            raise
    leave(Outcome(result=result))


def _returned_by(call: Callable[[], Any]) -> Any:
    """A function that ends the process well has returned nothing."""
    try:
        return call()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        return None


def _last_place() -> tuple[int, int, int] | None:
    """Where nobody has imported it, nobody has joined."""
    launcher = sys.modules.get("ring_keras.lifecycle.elastic_launcher")
    return None if launcher is None else launcher.last_place()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
