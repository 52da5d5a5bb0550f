"""Nodes for pods, which are network namespaces, and the names that DNS would give."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.network import Network, run
from support.processes import wait_until

ROOT_DIR = Path(__file__).parents[3]
PLAYER = Path(__file__).with_name("play_pod.py")


class Cluster(Network):
    """Nodes with a pod each, which know names.

    Args:
        size: Number of nodes.
        directory: For the pods.
    """

    def __init__(self, size: int, directory: Path) -> None:
        super().__init__(size)
        self.directory = directory
        self._commands = directory / "commands"
        self._pods: list[Pod] = []

    def set_names(self, names: Mapping[str, int]) -> None:
        """From now on, these are the nodes' names on all nodes."""
        lines = [f"{self.addresses[node]} {name}" for name, node in names.items()]
        for name in self.names:
            # In place: the pods that run see this very file.
            with (Path("/etc/netns", name) / "hosts").open("r+") as file:
                file.write("\n".join(["127.0.0.1 localhost", *lines, ""]))
                file.truncate()

    def set_link(self, node: int, state: str) -> None:
        """Puts a node's link `down` or `up`."""
        run("ip", "-n", self._switch, "link", "set", f"port{node}", state)

    def start(self, node: int, hostname: str, **pod: Any) -> Pod:
        """Starts a pod there; see `Pod`."""
        directory = self.directory / f"pod{len(self._pods)}"
        self._pods.append(
            Pod(
                self.command(node),
                hostname,
                self.addresses[node],
                directory,
                self._commands,
                **pod,
            )
        )
        return self._pods[-1]

    def make(self) -> None:
        super().make()
        for name in self.names:
            # `ip netns exec` puts this in place of /etc/hosts.
            Path("/etc/netns", name).mkdir(parents=True)
            Path("/etc/netns", name, "hosts").touch()
        self.set_names({})
        _make_commands(self._commands)

    def remove(self) -> None:
        for pod in self._pods:
            pod.kill()
        for name in self.names:
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)
        with contextlib.suppress(OSError):  # Somebody else's are there.
            Path("/etc/netns").rmdir()
        super().remove()


class Pod:
    """A pod that runs.

    Args:
        prefix: The words that put a command on its node.
        hostname: Its own name.
        address: Its node's, and so its own.
        directory: Is made, for all that it needs.
        commands: A folder that its image has in its PATH.
        template: Of the rendered manifest.
        objects: The content of Secrets and ConfigMaps, by name.
        env: What a controller adds to each container's variables.
    """

    def __init__(
        self,
        prefix: list[str],
        hostname: str,
        address: str,
        directory: Path,
        commands: Path,
        *,
        template: Mapping[str, Any],
        objects: Mapping[str, Mapping[str, str]],
        env: Mapping[str, str],
    ) -> None:
        spec = copy.deepcopy(template["spec"])
        for container in spec["containers"]:
            added = [{"name": name, "value": value} for name, value in env.items()]
            container["env"] = [*added, *container.get("env", [])]
        directory.mkdir(parents=True)
        pod = {
            "spec": spec,
            "hostname": hostname,
            "address": address,
            "objects": objects,
            "image_paths": [str(ROOT_DIR), *_interpreters(), str(commands)],
            "image_environment": {
                "PATH": f"{commands}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT_DIR),
            },
        }
        file = directory / "pod.json"
        file.write_text(json.dumps(pod))
        self._log = directory / "log"
        command = [*prefix, "setpriv", "--pdeathsig", "KILL", "unshare", "--uts"]
        self._process = subprocess.Popen(
            [*command, "--mount", sys.executable, str(PLAYER), str(file)],
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
        )

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def await_log(self, text: str, timeout_s: float = 120) -> None:
        """Until it has printed that."""

        def said() -> bool:
            ended = self._process.poll() is not None
            if text not in self.log and ended:
                raise AssertionError(f"a pod ended before it said {text!r}")
            return text in self.log

        try:
            wait_until(said, f"a pod has said {text!r}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log}") from None

    def wait(self, timeout_s: float = 120) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}: {self.log}") from None

    def terminate(self) -> None:
        """Asks its containers to end, as a kubelet does."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, as the end of its node would."""
        self._process.kill()
        self._process.wait(30)


def _interpreters() -> list[str]:
    """Folders with Python's own, and with what is installed."""
    found = [sys.prefix, sys.base_prefix, *sys.path]
    return [path for path in found if Path(path).is_dir()]


def _make_commands(folder: Path) -> None:
    """`python` and `ringrun`, as an image's PATH would have them."""
    folder.mkdir(parents=True)
    for name, command in (
        ("python", sys.executable),
        ("ringrun", f"{sys.executable} -m ring_keras.launch"),
    ):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
