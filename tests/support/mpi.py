"""The MPIs whose mpirun tests start ranks with."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT_DIR = Path(__file__).resolve().parent.parent.parent


def documented_scripts() -> list[str]:
    """The job scripts of docs/schedulers.md."""
    page = (ROOT_DIR / "docs/schedulers.md").read_text()
    return re.findall(
        r"^```bash\n(#!/bin/bash\n.*?)^```", page, re.DOTALL | re.MULTILINE
    )


# Slurm's, with which Intel MPI talks to it.
_LIBPMI2 = "libpmi2.so.0"


def _debians(name: str) -> Path | None:
    """A file among Debian's libraries."""
    return next(iter(Path("/usr/lib").glob(f"*-linux-gnu/{name}")), None)


@dataclass(frozen=True)
class Mpi:
    """One of them.

    Attributes:
        name: As the message of a test that is skipped calls it.
        folder: Its virtual environment among those of the benchmarks.
        marker: A file in its `bin` that no other has.
        on_one_host: mpirun's options for ranks of this host.
    """

    name: str
    folder: str
    marker: str
    on_one_host: tuple[str, ...] = ()

    @property
    def bin_dir(self) -> Path | None:
        """Where its mpirun is; None: nowhere."""
        peers = Path(os.environ.get("RING_KERAS_PEERS", ROOT_DIR / "build/peers"))
        installed = peers / self.folder / "bin"
        if (installed / "mpirun").exists():
            return installed
        marker = shutil.which(self.marker)
        return None if marker is None else Path(marker).parent

    def environment(self) -> dict[str, str]:
        """What its mpirun needs on top of its own."""
        return {
            "PATH": f"{self.bin_dir}:{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    @property
    def missing(self) -> str:
        """What a test says that is skipped, as it is not here."""
        return (
            f"there is no {self.name}: benchmarks/make_environments.sh "
            f"{self.folder} installs it, and RING_KERAS_PEERS says where it is"
        )

    @property
    def library(self) -> Path | None:
        """Where its libmpi is."""
        if self.bin_dir is None:
            return None
        found = sorted(self.bin_dir.parent.glob("lib/libmpi.so.[0-9]*"))
        return next((path for path in found if path.suffix in (".12", ".40")), None)

    @property
    def python_packages(self) -> Path | None:
        """Where its mpi4py is."""
        if self.bin_dir is None:
            return None
        found = self.bin_dir.parent.glob("lib/python3*/site-packages/mpi4py")
        return next((path.parent for path in found), None)

    def between_machines(self) -> dict[str, str]:
        """The variables with which it uses TCP between processes of one machine."""
        if self.folder == "openmpi":
            return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
        if self.folder == "mpich":
            return {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
        return self._libfabric() | {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp"}

    def _libfabric(self) -> dict[str, str]:
        """Where Intel MPI's is, which its wheel does not say to other Pythons."""
        assert self.library is not None
        return dict.fromkeys(
            ("LD_LIBRARY_PATH", "FI_PROVIDER_PATH"), str(self.library.parent)
        )

    def between_hosts(self) -> dict[str, str]:
        """The variables of a test's ranks that reach other hosts by it."""
        return {
            "TESTS_MPI": self.folder,
            "RING_KERAS_TRANSPORT": "mpi",
            "RING_KERAS_MPI_LIBRARY": str(self.library),
            "MPI4PY_LIBMPI": str(self.library),
        }

    @property
    def srun_option(self) -> str:
        """How srun tells its processes of each other."""
        return "--mpi=pmix" if self.folder == "openmpi" else "--mpi=pmi2"

    @property
    def missing_for_srun(self) -> str:
        """The file without which srun cannot start it; empty: it can."""
        needed = {"openmpi": "pmix2/lib/libpmix.so", "intel_mpi": _LIBPMI2}
        name = needed.get(self.folder)
        return name if name is not None and _debians(name) is None else ""

    def under_srun(self) -> dict[str, str]:
        """What it needs that its own mpirun would give it."""
        if self.folder != "intel_mpi":
            return {}
        return self._libfabric() | {"I_MPI_PMI_LIBRARY": str(_debians(_LIBPMI2))}

    def across(self, addresses: list[str], ssh: str) -> list[str]:
        """Its mpirun's command for one rank on each host, which `ssh` reaches.

        Args:
            addresses: Of the hosts.
            ssh: The path of a program that takes what ssh does.
        """
        size, hosts = str(len(addresses)), ",".join(addresses)
        if self.folder == "openmpi":
            slots = ",".join(f"{address}:1" for address in addresses)
            agent = ["--prtemca", "plm_ssh_agent", ssh]
            device = ["--prtemca", "prte_if_include", "eth0"]
            shared = ["-x", "RING_KERAS_RENDEZVOUS_DIR"]
            return ["mpirun", "-np", size, "--host", slots, *agent, *device, *shared]
        command = ["mpiexec.hydra", "-n", size, "-ppn", "1", "-hosts", hosts]
        bootstrap = ["-launcher", "ssh", "-launcher-exec", ssh]
        return [*command, *bootstrap, "-iface", "eth0"]


MPIS = (
    Mpi("Open MPI", "openmpi", "ompi_info", ("--oversubscribe",)),
    Mpi("MPICH", "mpich", "mpichversion"),
    Mpi("Intel MPI", "intel_mpi", "impi_info"),
)


def mpi_of(folder: str) -> Mpi:
    """The one whose folder is so called."""
    return next(mpi for mpi in MPIS if mpi.folder == folder)
