"""What the chart's pods run, run: an Indexed Job's ranks train as one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.kubernetes.chart import NAMESPACE, Object, contents, find, render
from support.kubernetes.cluster import Cluster, Pod
from support.kubernetes.scripts import TRAIN

pytestmark = pytest.mark.engines

ENDLESS = """
import numpy as np
import ring_keras as ring

ring.init()
print("began", flush=True)
while True:
    ring.allreduce(np.ones(9, np.float32), name="x")
"""


def start(cluster: Cluster, objects: list[Object], index: int) -> Pod:
    """A pod of the Indexed Job, as its controller makes it."""
    job = find(objects, "Job")
    return cluster.start(
        index,
        f"{job['metadata']['name']}-{index}",
        template=job["spec"]["template"],
        objects=contents(objects),
        env={"JOB_COMPLETION_INDEX": str(index)},
    )


def give_names(cluster: Cluster, objects: list[Object]) -> None:
    """Those that the headless Service would give to the Job's pods."""
    job, service = find(objects, "Job"), find(objects, "Service")
    name, domain = job["metadata"]["name"], service["metadata"]["name"]
    cluster.set_names(
        {
            f"{name}-{index}.{domain}.{NAMESPACE}.svc.cluster.local": index
            for index in range(job["spec"]["completions"])
        }
    )


@pytest.mark.parametrize("encrypt", [False, True])
def test_pods_train_as_one_job(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any], encrypt: bool
) -> None:
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    objects = render(**values, nodes=2, slotsPerPod=1 + encrypt, encrypt=encrypt)
    give_names(cluster, objects)

    pods = [start(cluster, objects, index) for index in (1, 0)]

    for pod in pods:
        assert pod.wait(170) == 0, pod.log
        assert f"trained by {2 + 2 * encrypt} on 2 pods" in pod.log


def test_a_lost_pod_ends_all_and_the_next_ones_train(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    script = tmp_path / "work" / "train.py"
    script.write_text(ENDLESS)
    objects = render(**values, nodes=2)
    give_names(cluster, objects)
    first, second = (start(cluster, objects, index) for index in range(2))
    first.await_log("began")
    second.await_log("began")

    second.kill()

    assert first.wait(60) == 1
    assert "node 1 (host digits-ring-keras-1) was lost" in first.log
    script.write_text(TRAIN)
    for pod in [start(cluster, objects, index) for index in range(2)]:
        assert pod.wait(120) == 0, pod.log


def test_a_pod_that_is_asked_to_end_ends_all_with_the_code_that_is_ignored(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    (tmp_path / "work" / "train.py").write_text(ENDLESS)
    objects = render(**values, nodes=2)
    give_names(cluster, objects)
    pods = [start(cluster, objects, index) for index in range(2)]
    for pod in pods:
        pod.await_log("began")

    pods[1].terminate()

    rules = find(objects, "Job")["spec"]["podFailurePolicy"]["rules"]
    (ignored,) = (
        rule["onExitCodes"]["values"]
        for rule in rules
        if rule["action"] == "Ignore" and "onExitCodes" in rule
    )
    for pod in pods:
        assert pod.wait(60) in ignored, pod.log


def test_a_command_that_is_not_there_fails_the_job_for_good(
    cluster: Cluster, values: dict[str, Any]
) -> None:
    objects = render(**values | {"command": ["no-such-command"]}, nodes=2)
    give_names(cluster, objects)

    code = start(cluster, objects, 0).wait(60)

    rules = find(objects, "Job")["spec"]["podFailurePolicy"]["rules"]
    (hopeless,) = (rule for rule in rules if rule["action"] == "FailJob")
    assert code in hopeless["onExitCodes"]["values"]


def test_helm_tests_two_ranks_in_one_pod(
    cluster: Cluster, values: dict[str, Any]
) -> None:
    objects = render(**values)

    pod = cluster.start(
        0,
        "digits-ring-keras-check",
        template=find(objects, "Pod"),
        objects=contents(objects),
        env={},
    )

    assert pod.wait(120) == 0, pod.log


def test_nobody_but_the_user_can_read_the_secret(
    cluster: Cluster, values: dict[str, Any]
) -> None:
    look = "stat -c '%a %u' /run/ring-keras/token; touch /run/ring-keras/x /x; id -u"
    options = {"command": ["sh", "-c"], "options": []}
    objects = render(**values | {"ringrun": options, "nodes": 1})
    job = find(objects, "Job")
    job["spec"]["template"]["spec"]["containers"][0]["args"] = [look]

    pod = start(cluster, objects, 0)

    assert pod.wait(60) == 0, pod.log
    lines = pod.log.splitlines()
    assert lines[0] == "400 1000"
    assert lines[-1] == "1000"
    assert pod.log.count("Read-only file system") == 2
