"""Runs ranks of torch on hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.places import PEERS_DIR
from benchmarks.scaling.launch import Hosts

__all__ = ["is_there", "train"]

_BIN = PEERS_DIR / "torchft" / "bin"
_RANK = str(Path(__file__).with_name("torch_rank.py"))
_PORT = 29510
_STORE_PORT = 29511


def is_there() -> bool:
    """Whether its environment is: see make_environments.sh."""
    return (_BIN / "torchft_lighthouse").exists()


def train(network: Hosts, task: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """A job of one rank on each host; what the first has to say.

    Raises:
        RuntimeError: If a rank fails; with what it printed.
    """
    address = network.addresses[0]
    lighthouse = [
        *(str(_BIN / "torchft_lighthouse"), "--min_replicas", str(task["size"])),
        *("--join_timeout_ms", "60000", "--bind", f"{address}:{_PORT}"),
    ]
    with contextlib.ExitStack() as stack:
        result = stack.enter_context(tempfile.NamedTemporaryFile("r", suffix=".json"))
        log = stack.enter_context(tempfile.TemporaryFile())

        def start(host: int, command: list[str], env: dict[str, str]) -> Any:
            process = subprocess.Popen(
                network.command(host, *command),
                env=os.environ | env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        start(0, lighthouse, {})
        ranks = [
            start(
                rank,
                [str(_BIN / "python"), _RANK, json.dumps(task), result.name],
                {
                    "PEER_RANK": str(rank),
                    "PEER_ADDRESS": network.addresses[rank],
                    "PEER_LIGHTHOUSE": f"http://{address}:{_PORT}",
                    "PEER_STORE": f"tcp://{address}:{_STORE_PORT}",
                    "GLOO_SOCKET_IFNAME": "eth0",
                },
            )
            for rank in range(task["size"])
        ]
        codes = [rank.wait(timeout=limit_s) for rank in ranks]
        if any(codes):
            log.seek(0)
            printed = log.read().decode(errors="replace")
            raise RuntimeError(f"torch's ranks exited with {codes}:\n{printed}")
        said: dict[str, Any] = json.load(result)
    return said
