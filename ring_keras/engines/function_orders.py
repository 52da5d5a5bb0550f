"""What the process of a rank that runs a function does, as it is told."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection

from ring_keras.engines.outcomes import Outcome, failure_of
from ring_keras.engines.rank_start import RankStart, start_rank_store
from ring_keras.launch.places import Place

__all__ = ["FunctionOrders"]


class FunctionOrders:
    """Follows them, in the order in which they come.

    Args:
        connection: Gives them, and takes what becomes of them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._call: Callable[[], bytes] | None = None
        self._is_done = False

    def follow(self) -> None:
        """Until the function has been called.

        Raises:
            BaseException: What failed, which is told before.
            EOFError: If nobody gives orders any more.
        """
        orders: dict[str, Callable[..., None]] = {
            "store": self._store,
            "load": self._load,
            "run": self._run,
        }
        while not self._is_done:
            order, *arguments = self._connection.recv()
            try:
                orders[order](*arguments)
            except BaseException as error:
                self._connection.send(failure_of(error))
                raise  # It is printed, and told to the ranks that wait for this one.

    def _store(self, place: Place, starter: str, reach: str) -> None:
        self._connection.send(start_rank_store(place, starter, reach))

    def _load(self, call: bytes, parts: bytes, serializer: str) -> None:
        function, arguments = pickle.loads(call), pickle.loads(parts)
        dumps = importlib.import_module(serializer).dumps
        self._call = lambda: dumps(function(*arguments))

    def _run(self, start: RankStart) -> None:
        assert self._call is not None
        with start.in_environment():
            result = self._call()
        self._connection.send(Outcome(result=result))
        self._is_done = True
