"""Starts the ranks of a job in the namespaces of a `Network`."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.hosts.network import Network
from ring_keras import _native

__all__ = ["run_on_hosts"]


def run_on_hosts(
    network: Network,
    hosts: int,
    per_host: int,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Runs Python with `arguments` on `per_host` ranks on each of `hosts` hosts.

    Raises:
        RuntimeError: If a rank fails; with what it printed.
    """
    size = hosts * per_host
    token = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory() as directory:
        token_file = Path(directory, "token")
        token_file.touch(0o600)
        token_file.write_text(token.hex())
        # Like ringrun's, on the first host.
        address = network.addresses[0]
        store = network.inside(
            0, lambda: _native.StoreServer(address, 0, size, 0, token)
        )
        ranks: list[subprocess.Popen[str]] = []
        try:
            for rank in range(size):
                host = rank // per_host
                own = {
                    "RING_KERAS_RANK": str(rank),
                    "RING_KERAS_SIZE": str(size),
                    "RING_KERAS_STORE_ADDRESS": f"{address}:{store.port}",
                    "RING_KERAS_TOKEN_FILE": str(token_file),
                    # The machine's name is the same in all of them.
                    "RING_KERAS_HOST_NAME": f"host{host}",
                }
                ranks.append(
                    subprocess.Popen(
                        network.command(host, sys.executable, *arguments),
                        env={**os.environ, **environment, **own},
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
            for rank, process in enumerate(ranks):
                printed, _ = process.communicate(timeout=timeout_s)
                if process.returncode != 0:
                    raise RuntimeError(
                        f"rank {rank} of {size} exited with code "
                        f"{process.returncode}:\n{printed}"
                    )
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            store.close()
