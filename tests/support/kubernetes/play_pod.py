"""Runs a pod's containers on the host, a network namespace, in which it is started.

As a kubelet has them: a root that is this machine's, read-only but for the pod's
volumes, processes numbered from 1, the pod's user, no capability, and `$(NAME)` in
commands replaced. `play_pod.py POD.json [CONTAINER]`; the second form is one container.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# Of this machine's root, what an image would have too.
_IMAGE = {"bin", "dev", "etc", "lib", "lib32", "lib64", "opt", "sbin", "sys", "usr"}
_VARIABLE = re.compile(r"\$\$|\$\((\w+)\)")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def make_volume(volume: dict[str, Any], pod: dict[str, Any], path: Path) -> None:
    """A folder, or a file system of its own."""
    path.mkdir(parents=True)
    group = pod["spec"]["securityContext"]["fsGroup"]
    if "hostPath" in volume:
        mount("--bind", volume["hostPath"]["path"], path)
        return
    size = volume.get("emptyDir", {}).get("sizeLimit", "1Mi").rstrip("i")
    mount("-t", "tmpfs", "-o", f"size={size}", "none", path)
    os.chown(path, 0, group)
    path.chmod(0o2777)
    for key, kind, named in (
        ("secret", "Secret", "secretName"),
        ("configMap", "ConfigMap", "name"),
    ):
        if key in volume:
            source = volume[key]
            for name, text in pod["objects"][f"{kind}/{source[named]}"].items():
                (path / name).write_text(text)
                # As a kubelet makes them readable for the pod's group.
                (path / name).chmod(source.get("defaultMode", 0o644) | 0o440)
                os.chown(path / name, 0, group)


def make_root(root: Path, mount_points: list[str]) -> None:
    root.mkdir()
    mount("-t", "tmpfs", "-o", "mode=755", "none", root)
    for entry in Path("/").iterdir():
        inside = root / entry.name
        if entry.is_symlink():
            inside.symlink_to(entry.readlink())
        elif entry.name in _IMAGE:
            inside.mkdir()
            mount("--rbind", entry, inside)
            mount("-o", "remount,bind,ro", inside)
    # Volumes may lie in /etc, which an image would have places for.
    places = root / "places"
    for path in mount_points:
        if path.startswith("/etc/"):
            (places / path[len("/etc/") :]).mkdir(parents=True, exist_ok=True)
    if places.exists():
        layers = f"lowerdir={places}:/etc"
        mount("-t", "overlay", "-o", layers, "none", root / "etc")
        mount("--bind", "/etc/hosts", root / "etc" / "hosts")
    (root / "proc").mkdir()
    mount("-t", "proc", "none", root / "proc")


def variables(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    environment: dict[str, str] = dict(pod["image_environment"])
    for variable in container.get("env", []):
        value = variable.get("value")
        if value is None:
            field = variable["valueFrom"]["fieldRef"]["fieldPath"]
            fields = {"metadata.name": "hostname", "status.podIP": "address"}
            value = pod[fields[field]]
        environment[variable["name"]] = value
    return environment


def expanded(word: str, environment: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return environment.get(found[1], found[0])

    return _VARIABLE.sub(value, word)


def become(pod: dict[str, Any], container: dict[str, Any], directory: Path) -> None:
    """This process becomes the container's first."""
    root = directory / f"root-{container['name']}"
    at_paths = container.get("volumeMounts", [])
    make_root(root, [at["mountPath"] for at in at_paths])
    for at in at_paths:
        inside = root / at["mountPath"].lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        mount("--bind", directory / "volumes" / at["name"], inside)
        if at.get("readOnly"):
            mount("-o", "remount,bind,ro", inside)
    # Now, as they may lie in this machine's /tmp.
    for path in pod["image_paths"]:
        hiding = [
            at["mountPath"] for at in at_paths if path.startswith(at["mountPath"] + "/")
        ]
        assert hiding in ([], ["/tmp"]), f"{path} is hidden by a volume at {hiding}"
        inside = root / path.lstrip("/")
        if not inside.exists():
            inside.mkdir(parents=True)
            mount("--bind", "-o", "ro", path, inside)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mount("-o", "remount,bind,ro", root)
    os.chroot(root)
    os.chdir(container.get("workingDir", "/"))
    environment = variables(pod, container)
    user = pod["spec"]["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    words = [*container["command"], *container.get("args", [])]
    command = ["setpriv", "--reuid", user["runAsUser"], "--regid", user["runAsGroup"]]
    # Another user has no death signal but a new one.
    command += ["--pdeathsig", "KILL", "--groups", user["fsGroup"]]
    command += ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    command += [expanded(word, environment) for word in words]
    os.execvpe("setpriv", list(map(str, command)), environment)


def run(words: list[str]) -> int:
    """One container; its exit code, as a shell has it."""
    # Whatever ends this process ends it.
    alone = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"]
    process = subprocess.Popen([*alone, "--kill-child", *words])

    def forward(number: int, _frame: object) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for pid in map(int, children.read_text().split()):
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, forward)
    code = process.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    path = Path(sys.argv[1])
    pod = json.loads(path.read_text())
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    if len(sys.argv) > 2:
        (own,) = (one for one in containers if one["name"] == sys.argv[2])
        become(pod, own, path.parent)
    socket.sethostname(pod["hostname"])
    for volume in pod["spec"]["volumes"]:
        make_volume(volume, pod, path.parent / "volumes" / volume["name"])
    for container in containers:
        code = run([sys.executable, __file__, str(path), container["name"]])
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
