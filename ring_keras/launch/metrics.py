"""What ranks report, for Prometheus to collect."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import socketserver
import stat
import threading
import time
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ring_keras.launch.output import say

__all__ = ["MetricsOptions", "MetricsServer", "check_metrics"]

_LONGEST_REQUEST_S = 10.0
# Prometheus needs one, and only while it asks.
_MOST_CONNECTIONS = 16

# What a report calls it, how the metric ends, and what it is.
_COUNTERS = (
    ("steps", "steps", "Steps that the rank has taken"),
    ("examples", "examples", "Examples in them, where their number is known"),
    ("duration_s", "step_seconds", "Seconds that they took"),
    ("input_s", "input_seconds", "Seconds in which the rank waited for its data"),
    ("compute_s", "compute_seconds", "Seconds in which it computed"),
    ("wait_s", "wait_seconds", "Seconds in which it waited for other ranks"),
    ("exposed_s", "exposed_seconds", "Seconds in which it waited for bytes to move"),
    ("bytes", "collective_bytes", "Bytes of its tensors in collectives"),
)

Reports = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class MetricsOptions:
    """Where metrics are served.

    Attributes:
        host: An address of this machine.
        port: The port; 0 for any.
        token: Who asks must send it; None on the loopback interface alone.
    """

    host: str
    port: int
    token: str | None


def check_metrics(
    host: str | None, port: int | None, token_file: Path | None
) -> MetricsOptions | None:
    """What the command line asks for; None: no metrics.

    Raises:
        ValueError: If it cannot be had, in words for its user.
    """
    if port is None:
        for option, value in (
            ("--metrics-host", host),
            ("--metrics-token-file", token_file),
        ):
            if value is not None:
                raise ValueError(f"{option} is for --metrics-port")
        return None
    host = host or "127.0.0.1"
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ValueError(
            "--metrics-port needs prometheus-client: pip install "
            "'ring-keras[prometheus]', where ringrun runs"
        ) from None
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ValueError(f"--metrics-host must be an address, not {host}") from None
    if token_file is None:
        if not loopback:
            raise ValueError(
                f"--metrics-host {host} is not the loopback interface: everybody who "
                "reaches it would see the metrics. Give --metrics-token-file too"
            )
        return MetricsOptions(host, port, None)
    return MetricsOptions(host, port, _read_token(token_file))


def _read_token(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--metrics-token-file {path}: {error}") from None
    if mode & 0o077:
        raise ValueError(
            f"--metrics-token-file {path}: must be readable by its owner alone, mode "
            f"0600, not {mode:04o}"
        )
    if not token:
        raise ValueError(f"--metrics-token-file {path}: it is empty")
    return token


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """Keeps few connections, and none for long; the oldest gives way to a new one."""

    daemon_threads = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._began: dict[Any, float] = {}  # By connection, the oldest first.
        self._lock = threading.Lock()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        with self._lock:
            if len(self._began) >= _MOST_CONNECTIONS:
                self._cut(next(iter(self._began)))
            self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is over."""
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then: who sends a byte at a time does not stay either."""
        latest = time.monotonic() - _LONGEST_REQUEST_S
        with self._lock:
            for request in [r for r, began in self._began.items() if began < latest]:
                self._cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of a client that is gone, or was cut: nothing to tell."""

    def _cut(self, request: Any) -> None:
        del self._began[request]
        with contextlib.suppress(OSError):  # It is closed already.
            request.shutdown(socket.SHUT_RDWR)  # Wakes the thread that reads from it.


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    timeout = _LONGEST_REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nothing to tell."""


class MetricsServer:
    """Serves the latest reports in a thread of its own.

    Args:
        options: Where.
        reports: Gives the latest report of each rank.
        host_of: The name of a rank's host.

    Raises:
        OSError: If nobody can listen there.
    """

    def __init__(
        self,
        options: MetricsOptions,
        reports: Callable[[], Reports],
        host_of: Callable[[int], str],
    ) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry()
        registry.register(_Collector(reports, host_of))
        serve = _authorized(make_wsgi_app(registry), options.token)
        server_class: type[_Server] = _Server
        if ":" in options.host:
            server_class = _server_of_version_6()
        server = wsgiref.simple_server.make_server(
            options.host, options.port, serve, server_class, _Handler
        )
        self.port: int = server.server_port
        """Where it listens."""
        if options.port == 0:
            say(f"metrics are at http://{options.host}:{self.port}/metrics")
        threading.Thread(
            target=server.serve_forever, name="metrics", daemon=True
        ).start()


def _server_of_version_6() -> type[_Server]:
    class Server(_Server):
        address_family = socket.AF_INET6

    return Server


def _authorized(serve: Callable[..., Any], token: str | None) -> Callable[..., Any]:
    """Lets those in who have the token, if there is one."""
    if token is None:
        return serve
    expected = f"Bearer {token}".encode()

    def check(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace")
        if hmac.compare_digest(given, expected):
            answer: Iterable[bytes] = serve(environ, start_response)
            return answer
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"Send the token of --metrics-token-file: Authorization: Bearer ...\n"]

    return check


class _Collector:
    """What Prometheus's client calls at each request."""

    def __init__(
        self, reports: Callable[[], Reports], host_of: Callable[[int], str]
    ) -> None:
        self._reports = reports
        self._host_of = host_of

    def describe(self) -> Iterable[Any]:
        """Nothing beforehand."""
        return ()

    def collect(self) -> Iterable[Any]:
        """The latest reports."""
        from prometheus_client.core import CounterMetricFamily

        reports = self._reports()
        for field, name, text in _COUNTERS:
            family = CounterMetricFamily(
                f"ring_keras_{name}", text, labels=("rank", "host")
            )
            for rank, report in sorted(reports.items()):
                family.add_metric((str(rank), self._host_of(rank)), report[field])
            yield family
        waited = CounterMetricFamily(
            "ring_keras_waited_for_seconds",
            "Seconds in which the rank waited for the other one, which came last",
            labels=("rank", "other"),
        )
        for rank, report in sorted(reports.items()):
            for other, seconds in report["waited_for_s"].items():
                waited.add_metric((str(rank), other), seconds)
        yield waited
