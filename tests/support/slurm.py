"""A real Slurm on hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.job import light_environment
from support.processes import wait_until
from support.ssh_hosts import SshHosts

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
MISSING = [
    name
    for name in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")
    if shutil.which(name, path=_PATH) is None
]

_CONFIG = """\
ClusterName=ringtest
SlurmctldHost={names[0]}({addresses[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%n
TmpFS={directory}/tmp.%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=5,bf_interval=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=120 GraceTime=8 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=10 State=UP
"""


class Slurm:
    """Its daemons, on all of `hosts`, with 4 CPUs each; `close` ends them.

    Args:
        hosts: With names of their own.
        directory: For all its files.
    """

    def __init__(self, hosts: SshHosts, directory: Path) -> None:
        self.hosts = hosts
        self.directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} CPUs=4 State=UNKNOWN"
            for name, address in zip(hosts.host_names, hosts.addresses, strict=True)
        )
        (directory / "state").mkdir()
        config = directory / "slurm.conf"
        config.write_text(
            _CONFIG.format(
                names=hosts.host_names,
                addresses=hosts.addresses,
                directory=directory,
                nodes=nodes,
            )
        )
        self.path = _PATH
        self._environment = {"SLURM_CONF": str(config), "PATH": _PATH}

    def start(self) -> None:
        """Starts the daemons; returns when all nodes take jobs."""
        # munged wants nobody else to write to any directory above its socket.
        self.directory.chmod(0o755)
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{name}-file={self.directory}/munge.{name}" for name in _MUNGE]
        socket = f"--socket={self.directory}/munge.socket"
        self._start(["munged", "--foreground", "--force", socket, *files])
        wait_until((self.directory / "munge.socket").exists, "munged listens")
        self._start(self._on(0, "slurmctld", "-D"))
        for host, name in enumerate(self.hosts.host_names):
            for folder in ("spool", "tmp"):
                (self.directory / f"{folder}.{name}").mkdir()
            self._start(self._on(host, "slurmd", "-D", "-N", name))
        wait_until(self._is_ready, "all nodes are idle", timeout_s=60)

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of its commands on the first host, to the end."""
        return subprocess.run(
            self._on(0, *command),
            env=self.environment() | dict(env or {}),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def environment(self) -> dict[str, str]:
        """What its commands need, and ranks that they start."""
        return light_environment() | self._environment

    def take_back(self, name: str) -> None:
        """Has a node take jobs again that was down or cut off."""
        # A node that did not hear of a job's end is only asked again after a minute,
        # and holds it until then; one that is down holds no job.
        update = "scontrol", "update", f"NodeName={name}", "Reason=test"
        self.run(*update, "State=DOWN")
        self.run(*update, "State=RESUME")
        # And it answers now, not when it is asked in turn.
        self.run("scontrol", "reconfigure")

    def cancel_all(self) -> None:
        """Ends all jobs; returns when every node is idle."""
        self.run("scancel", "--user=root")
        wait_until(self._is_ready, "all nodes are idle")

    def close(self) -> None:
        """Ends the daemons, and the jobs with them."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _on(self, host: int, *words: str) -> list[str]:
        """As `hosts.on`, but with the machine's /sys, where control groups are."""
        namespace = f"--net=/run/netns/{self.hosts.names[host]}"
        name = self.hosts.host_names[host]
        enter = ["unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]
        return ["nsenter", namespace, *enter, *words]

    def _is_ready(self) -> bool:
        wanted = "--noheader", "--partition=all", "--Node", "--format=%T"
        said = self.run("sinfo", *wanted).stdout
        return said.split() == ["idle"] * len(self.hosts.names)

    def _start(self, command: list[str]) -> None:
        log = (self.directory / "daemons.log").open("ab")
        environment = {**os.environ, **self._environment}
        self._daemons.append(
            subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        )


_MUNGE = ("key", "pid", "log", "seed")
