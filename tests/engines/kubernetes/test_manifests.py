"""Jobs of other controllers: their pods are valid, and what those run, run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubernetes.chart import ROOT_DIR, Object, validate
from support.kubernetes.cluster import Cluster, Pod
from support.kubernetes.scripts import TRAIN

pytestmark = pytest.mark.engines

FOLDER = ROOT_DIR / "deploy" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Object:
    document: Object = yaml.safe_load((FOLDER / name).read_text())
    return document


def pod_templates(tree: Any) -> Iterator[Object]:
    """All that there are in an object."""
    if isinstance(tree, dict):
        if "containers" in tree.get("spec", {}):
            yield tree
            return
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from pod_templates(branch)


@pytest.mark.parametrize("name", FILES)
def test_pods_are_valid_and_restricted(name: str) -> None:
    for template in pod_templates(load(name)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        validate(pod | {"spec": template["spec"]})
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert template["spec"]["automountServiceAccountToken"] is False
        containers = template["spec"]["containers"]
        for container in containers + template["spec"].get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", ["jobset.yaml", "trainer-runtime.yaml"])
def test_jobs_are_valid(name: str) -> None:
    spec = load(name)["spec"]
    jobs = spec.get("template", {}).get("spec", spec)["replicatedJobs"]
    for job in jobs:
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
        validate(head | {"spec": job["template"]["spec"]})


class Jobs:
    """Starts pods of a job.

    Args:
        cluster: Where they run.
        values: Of a chart: what brings the script along.
        work: The folder for the script.
    """

    def __init__(self, cluster: Cluster, values: dict[str, Any], work: Path) -> None:
        (work / "train.py").write_text(TRAIN)
        self._cluster = cluster
        self._values = values
        self.objects = {"Secret/ring-keras": {"token": secrets.token_hex(32)}}

    def start(self, node: int, name: str, template: Object, **env: str) -> Pod:
        (container,) = template["spec"]["containers"]
        container["workingDir"] = self._values["workingDir"]
        for place, more in (
            (container, "volumeMounts"),
            (template["spec"], "volumes"),
        ):
            place[more] = [*place[more], *self._values[more]]
        return self._cluster.start(
            node, name, template=template, objects=self.objects, env=env
        )


@pytest.fixture
def jobs(cluster: Cluster, values: dict[str, Any], tmp_path: Path) -> Jobs:
    return Jobs(cluster, values, tmp_path / "work")


def test_a_jobset_trains_though_names_are_known_late(
    cluster: Cluster, jobs: Jobs
) -> None:
    job = load("jobset.yaml")["spec"]["replicatedJobs"][0]["template"]["spec"]
    pods = []
    for index in range(job["completions"]):
        name = f"digits-ranks-0-{index}"
        (template,) = pod_templates(load("jobset.yaml"))
        pods.append(jobs.start(index, name, template, JOB_COMPLETION_INDEX=str(index)))
    pods[0].await_log("digits-ranks-0-0.digits:4711: nobody knows that name yet")

    cluster.set_names({"digits-ranks-0-0.digits": 0, "digits-ranks-0-1.digits": 1})

    for pod in pods:
        assert pod.wait(170) == 0, pod.log
        assert "trained by 4 on 2 pods" in pod.log


def test_a_trainjob_trains(cluster: Cluster, jobs: Jobs) -> None:
    trainer = load("trainjob.yaml")["spec"]["trainer"]
    cluster.set_names({"digits-node-0-0.digits": 0, "digits-node-0-1.digits": 1})
    pods = []
    for node in range(trainer["numNodes"]):
        (template,) = pod_templates(load("trainer-runtime.yaml"))
        (container,) = template["spec"]["containers"]
        container["args"] = trainer["args"]
        variables = {  # What the policy `torch` gives each pod.
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "digits-node-0-0.digits",
            "PET_MASTER_PORT": "29400",
        }
        pods.append(jobs.start(node, f"digits-node-0-{node}", template, **variables))

    for pod in pods:
        assert pod.wait(170) == 0, pod.log
        assert "trained by 4 on 2 pods" in pod.log


def test_an_mpijob_trains_without_mpi(cluster: Cluster, jobs: Jobs) -> None:
    spec = load("mpijob.yaml")["spec"]
    replicas = spec["mpiReplicaSpecs"]
    names = [
        f"digits-worker-{index}" for index in range(replicas["Worker"]["replicas"])
    ]
    hosts = [f"{name}.digits.ml.svc" for name in names]
    cluster.set_names({host: node for node, host in enumerate(hosts, start=1)})
    for node, name in enumerate(names, start=1):
        worker = load("mpijob.yaml")["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        jobs.start(node, name, worker).await_log("an agent waits")
    # As the operator adds it to the launcher.
    lines = [f"{host} slots={spec['slotsPerWorker']}\n" for host in hosts]
    jobs.objects["ConfigMap/digits-config"] = {"hostfile": "".join(lines)}
    launcher = replicas["Launcher"]["template"]
    launcher["spec"]["volumes"] = [
        *launcher["spec"]["volumes"],
        {"name": "mpi", "configMap": {"name": "digits-config"}},
    ]
    mounts = launcher["spec"]["containers"][0]["volumeMounts"]
    mounts.append({"name": "mpi", "mountPath": "/etc/mpi"})

    pod = jobs.start(0, "digits-launcher-x7f2q", launcher)

    assert pod.wait(170) == 0, pod.log
    assert "trained by 4 on 2 pods" in pod.log
