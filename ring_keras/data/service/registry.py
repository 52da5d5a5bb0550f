"""Where dispatchers and workers are told of, so that ranks find them."""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from ring_keras.errors import RingKerasError
from ring_keras.network.exchange import ask, receive_request, send_answer

__all__ = ["Registry", "RegistryClient"]

_REQUEST_TIMEOUT_S = 10.0
_WAIT_AT_A_TIME_S = 30.0
_MAX_CONNECTIONS = 256


class Registry:
    """Listens for those who know its key.

    Args:
        dispatchers: How many dispatchers there will be.
        workers_per_dispatcher: How many workers each of them will have.
        bind_address: The address to listen on, and no other.
    """

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        bind_address: str = "127.0.0.1",
    ) -> None:
        self.key = secrets.token_bytes(32)
        self._dispatcher_count = dispatchers
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        self._dispatchers: dict[int, str] = {}
        self._workers: dict[int, set[int]] = {}
        self._shut_down = False
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._listener = socket.create_server((bind_address, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Lets those who wait for the end go, and stops listening."""
        self._shutdown()
        with contextlib.suppress(OSError):  # Wakes `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Closed.
            if not self._connections.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                request, binding = receive_request(connection, self.key)
                send_answer(connection, self.key, binding, self._answer(request))
        except (OSError, ValueError) as error:
            logging.warning("ring_keras.data.service: refused a request: %s", error)
        finally:
            self._connections.release()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        kind = request.get("kind")
        try:
            if kind == "register_dispatcher":
                self._register_dispatcher(request["dispatcher"], request["address"])
            elif kind == "register_worker":
                self._register_worker(request["dispatcher"], request["worker"])
            elif kind == "shutdown":
                self._shutdown()
            elif kind in self._conditions():
                return self._wait(kind, int(request["dispatcher"]), request["seconds"])
            else:
                return {"error": f"no such request: {kind!r}"}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"{kind}: {error}"}
        return {}

    def _conditions(self) -> dict[str, Callable[[int], bool]]:
        return {
            "wait_for_dispatcher": lambda number: number in self._dispatchers,
            "wait_for_workers": lambda number: (
                len(self._workers.get(number, ())) >= self._workers_per_dispatcher
            ),
            "wait_for_shutdown": lambda _: self._shut_down,
        }

    def _wait(self, kind: str, dispatcher: int, seconds: float) -> dict[str, Any]:
        condition = self._conditions()[kind]
        with self._changed:
            self._changed.wait_for(
                lambda: condition(dispatcher) or self._shut_down,
                min(float(seconds), _WAIT_AT_A_TIME_S),
            )
            return {
                "done": condition(dispatcher),
                "address": self._dispatchers.get(dispatcher),
                "workers": sorted(self._workers.get(dispatcher, ())),
                "shut_down": self._shut_down,
            }

    def _register_dispatcher(self, number: int, address: str) -> None:
        self._require_known(number)
        with self._changed:
            if self._dispatchers.setdefault(number, address) != address:
                raise ValueError(
                    f"dispatcher {number} is at {self._dispatchers[number]} already; "
                    f"received: {address}"
                )
            self._changed.notify_all()

    def _register_worker(self, dispatcher: int, worker: int) -> None:
        self._require_known(dispatcher)
        with self._changed:
            self._workers.setdefault(dispatcher, set()).add(int(worker))
            self._changed.notify_all()

    def _require_known(self, dispatcher: int) -> None:
        if not 0 <= dispatcher < self._dispatcher_count:
            raise ValueError(
                f"there are {self._dispatcher_count} dispatchers; "
                f"received: dispatcher {dispatcher}"
            )

    def _shutdown(self) -> None:
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()


class RegistryClient:
    """Asks a registry; one connection per request.

    Args:
        addresses: Where it may be reached, tried in turn.
        key: Its secret.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], key: bytes) -> None:
        self._addresses = list(addresses)
        self._key = key

    def own_address(self) -> str:
        """This host's address on the network that the registry is on."""
        with self._connect() as connection:
            return str(connection.getsockname()[0])

    def register_dispatcher(self, dispatcher: int, address: str) -> None:
        """Says where a dispatcher listens."""
        self._ask(kind="register_dispatcher", dispatcher=dispatcher, address=address)

    def register_worker_for_dispatcher(self, dispatcher: int, worker: int) -> None:
        """Says that a worker is ready."""
        self._ask(kind="register_worker", dispatcher=dispatcher, worker=worker)

    def wait_for_dispatcher_registration(self, dispatcher: int, timeout: float) -> str:
        """Returns the dispatcher's address.

        Raises:
            TimeoutError: If it has not registered in time; so does the next.
        """
        answer = self._wait("wait_for_dispatcher", dispatcher, timeout)
        return str(answer["address"])

    def wait_for_dispatcher_worker_registration(
        self, dispatcher: int, timeout: float
    ) -> None:
        """Returns when all workers of a dispatcher are ready."""
        self._wait("wait_for_workers", dispatcher, timeout)

    def wait_for_shutdown(self) -> None:
        """Returns when someone has called `shutdown`, or the registry is gone."""
        while True:
            try:
                answer = self._ask(
                    kind="wait_for_shutdown", dispatcher=0, seconds=_WAIT_AT_A_TIME_S
                )
            except OSError:
                return
            if answer["shut_down"]:
                return

    def shutdown(self) -> None:
        """Ends the compute job."""
        self._ask(kind="shutdown")

    def _wait(self, kind: str, dispatcher: int, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            answer = self._ask(kind=kind, dispatcher=dispatcher, seconds=max(left, 0))
            if answer["done"]:
                return answer
            if answer["shut_down"]:
                raise RingKerasError("[RK530] The compute job has been shut down.")
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"ring_keras.data.service: {kind.replace('_', ' ')} {dispatcher}: "
                    f"after {timeout:g} s its address is {answer['address']}, and its "
                    f"workers are {answer['workers']}. Start the compute job with as "
                    "many ranks as dispatchers times workers_per_dispatcher."
                )

    def _ask(self, **request: Any) -> Any:
        with self._connect() as connection:
            connection.settimeout(_WAIT_AT_A_TIME_S + _REQUEST_TIMEOUT_S)
            answer = ask(connection, self._key, request)
        if "error" in answer:
            raise RingKerasError(f"[RK530] ring_keras.data.service: {answer['error']}")
        return answer

    def _connect(self) -> socket.socket:
        failures = []
        for address in self._addresses:
            try:
                return socket.create_connection(address, timeout=_REQUEST_TIMEOUT_S)
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
        raise ConnectionError(
            "ring_keras.data.service: the compute job's registry cannot be reached: "
            f"{'; '.join(failures)}. Is the job running, and the configuration its own?"
        )
