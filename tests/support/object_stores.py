"""Object stores of this host, each a process, and the file systems that reach them.

`python -m support.object_stores s3 127.0.0.1` serves there until its standard input
ends; its first line says at which port, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """A protocol, and what speaks it.

    Args:
        protocol: Of URLs.
        packages: Whose modules the server and the file system are.
        address_in: The variable by which the file system finds its server.
        variables: What else it goes by.
        unreachable: What it calls that.
    """

    protocol: str
    packages: tuple[str, str]
    address_in: str
    variables: Mapping[str, str]
    unreachable: str

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.packages if not importlib.util.find_spec(name)]

    def file_system(self, address: str) -> Any:
        """One that finds its server by variables alone, as that of a callback does."""
        os.environ |= {**self.variables, self.address_in: address}
        import fsspec

        fsspec.get_filesystem_class(self.protocol).clear_instance_cache()
        return fsspec.filesystem(self.protocol)

    @contextlib.contextmanager
    def served(
        self, prefix: Sequence[str] = (), address: str = "127.0.0.1"
    ) -> Iterator[tuple[str, int]]:
        """Its address, and the server's process.

        Args:
            prefix: Words before the command, which put it on a host.
            address: Of that host.
        """
        module = [sys.executable, "-m", "support.object_stores"]
        command = [*prefix, *module, self.protocol, address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, **pipes, text=True, env=environment) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address, f"no server for {self.protocol}"
            try:
                yield address, server.pid
            finally:
                server.kill()


KINDS = {
    "s3": Kind(
        "s3",
        ("moto", "s3fs"),
        "AWS_ENDPOINT_URL",
        {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        },
        "EndpointConnectionError",
    ),
    "gs": Kind(
        "gs",
        ("gcp_storage_emulator", "gcsfs"),
        "STORAGE_EMULATOR_HOST",
        # Else it asks the network whether this is a machine of Google's.
        {"NO_GCE_CHECK": "true"},
        "ClientConnectorError",
    ),
}


def _serve_s3(address: str) -> str:
    # It would say something of each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = importlib.import_module("moto.server").ThreadedMotoServer(
        ip_address=address, port=0
    )
    server.start()
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def _serve_gs(address: str) -> str:
    module = importlib.import_module("gcp_storage_emulator.server")
    server = module.create_server(address, 0, in_memory=True)
    server.start()
    host, port = server._api._httpd.server_address  # Which nothing else says.
    return f"http://{host}:{port}"


_SERVE: dict[str, Callable[[str], str]] = {"s3": _serve_s3, "gs": _serve_gs}

if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        address = _SERVE[sys.argv[1]](sys.argv[2])
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # Their threads would go on.
