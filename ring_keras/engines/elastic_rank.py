"""`python -m ring_keras.engines.elastic_rank`: a process of an elastic job.

ringrun's agent starts it, on a host that an engine has found. It runs a function, and
leaves the outcome of that where the engine's worker looks for it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ring_keras.engines.outcomes import Outcome, failure_of

__all__ = ["CALL", "DIRECTORY", "PYTHON", "FunctionCall", "rank_command"]

DIRECTORY = "RING_KERAS_ENGINE_DIR"
PYTHON = "RING_KERAS_ENGINE_PYTHON"
CALL = "call"


@dataclass(frozen=True)
class FunctionCall:
    """What to do, and where.

    Attributes:
        sys_path: Where the engine's worker finds modules.
        directory: In which it runs.
        call: A function without arguments, pickled.
        serializer: The module whose `dumps` pickles what that returns.
    """

    sys_path: list[str]
    directory: str
    call: bytes
    serializer: str


def rank_command() -> list[str]:
    """Of a process, on whatever host: the engine's Python may be elsewhere there."""
    return ["/bin/sh", "-c", f'exec "${PYTHON}" -m {__name__}']


def main() -> None:
    """Runs the function; what it raises is raised here."""
    directory = Path(os.environ.pop(DIRECTORY))
    del os.environ[PYTHON]
    number = int(os.environ["RING_KERAS_RANK"])
    own: FunctionCall = pickle.loads((directory / CALL).read_bytes())
    sys.path[:] = own.sys_path
    os.chdir(own.directory)
    try:
        dumps = importlib.import_module(own.serializer).dumps
        result = dumps(_returned_by(pickle.loads(own.call)))
    except BaseException as error:
        _leave(directory, number, failure_of(error))
        raise
    _leave(directory, number, Outcome(result=result))


def _returned_by(function: Callable[[], Any]) -> Any:
    """A function that ends the process well has returned nothing."""
    try:
        return function()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        return None


def _last_place() -> tuple[int, int, int] | None:
    """Where nobody has imported it, nobody has joined."""
    launcher = sys.modules.get("ring_keras.lifecycle.elastic_launcher")
    return None if launcher is None else launcher.last_place()


def _leave(directory: Path, number: int, outcome: Outcome) -> None:
    whole = replace(outcome, number=number, place=_last_place())
    whole.write(directory / f"{number}.outcome")


if __name__ == "__main__":
    main()
