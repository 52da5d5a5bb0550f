"""Allreduce over an MPI between hosts, ours beside that MPI's own, in one table.

    sudo python -m benchmarks.hosts.beside_mpi --peers FOLDER

Makes 2 network namespaces, and removes them. FOLDER holds virtual environments named
`openmpi`, `mpich` and `intel_mpi`, with mpi4py each; what it does not have is left out.
The two take turns in the same processes; a round's time is the slower rank's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.mpi import MPIS, Mpi
from support.network import Network

from benchmarks.hosts.__main__ import HERE, LIMIT_S, ROOT, hydra_launcher

SIZES = {
    "64 KiB": (64 << 10, 400),
    "256 KiB": (256 << 10, 200),
    "1 MiB": (1 << 20, 100),
    "4 MiB": (4 << 20, 40),
    "16 MiB": (16 << 20, 20),
    "64 MiB": (64 << 20, 8),
}


def launcher(mpi: Mpi, network: Network, variables: Mapping[str, str]) -> list[str]:
    """Its command for one rank on each host, with `variables`."""
    if mpi.folder != "openmpi":
        return hydra_launcher(network)
    enter = str(HERE / "enter.sh")
    hosts = ",".join(f"{address}:1" for address in network.addresses)
    command = ["mpirun", "-np", "2", "--host", hosts, "--bind-to", "none"]
    command += ["--prtemca", "plm_ssh_agent", enter, "--prtemca", "prte_if_include"]
    command.append("eth0")
    for name in variables:
        command += ["-x", name]
    return command


def measure(network: Network, mpi: Mpi, scale: float) -> dict[str, list[list[float]]]:
    """Of each size the seconds of every round, ours and the MPI's."""
    assert mpi.bin_dir is not None
    variables = {
        "RING_KERAS_TRANSPORT": "mpi",
        "RING_KERAS_MPI_LIBRARY": str(mpi.library),
        "RING_KERAS_RENDEZVOUS_DIR": str(Path.home() / ".cache"),
        "MPI4PY_LIBMPI": str(mpi.library),
        "PYTHONPATH": f"{ROOT}:{mpi.python_packages}",
        "LD_LIBRARY_PATH": str(mpi.bin_dir.parent / "lib"),
        "FI_PROVIDER_PATH": str(mpi.bin_dir.parent / "lib"),
    }
    # It cannot see that the hosts share cores.
    own = {"RING_HOSTS_PREFIX": network.names[0][:-1], "I_MPI_PIN": "0"}
    cases = [
        [name, size, max(3, round(n * scale))] for name, (size, n) in SIZES.items()
    ]
    program = [sys.executable, str(HERE / "beside_mpi_rank.py"), json.dumps(cases)]
    shell = ["unshare", "--uts", "sh", "-c", 'hostname host0; exec "$@"', "sh"]
    finished = subprocess.run(
        network.command(0, *shell, *launcher(mpi, network, variables), *program),
        env=os.environ | mpi.environment() | variables | own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr[-2000:])
    lines = [line for line in finished.stdout.splitlines() if line.startswith("{")]
    result: dict[str, list[list[float]]] = json.loads(lines[-1])
    return result


def main() -> None:
    """Measures, and prints the table: the MPI's median time over ours."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--scale", type=float, default=1, help="of the rounds' number")
    options = parser.parse_args()
    os.environ["RING_KERAS_PEERS"] = str(options.peers)
    print("| MPI's time / ours (ours, ms) |" + "".join(f" {name} |" for name in SIZES))
    print("|---|" + "---|" * len(SIZES))
    for mpi in MPIS:
        if mpi.library is None:
            continue
        with Network(2) as network:
            measured = measure(network, mpi, options.scale)
        cells = ""
        for ours, theirs in measured.values():
            own = statistics.median(ours)
            ratio = statistics.median(theirs) / own
            cells += f" {ratio:.2f} ({own * 1e3:.2f}) |"
        load = os.getloadavg()[0]
        print(f"| {mpi.name} |{cells} load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
