"""What the chart's workers and their launcher run, run: elastic jobs, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.elastic_loop import LOOP, await_sizes
from support.job import TESTS_DIR
from support.kubernetes.chart import NAMESPACE, Object, contents, find, render
from support.kubernetes.cluster import Cluster, Pod
from support.kubernetes.scripts import TRAIN
from support.processes import wait_until
from support.ringrun import PROLOGUE

pytestmark = pytest.mark.engines

# The soak's, which counts the examples; in a second run once there is a file "second".
COUNTS = f"""
import runpy, sys
from pathlib import Path

sys.path.insert(0, {str(TESTS_DIR)!r})
run = "/job/run.1" if Path("/job/second").exists() else "/job/run.0"
sys.argv = ["", run, "4", "0.02", "1", "/job/checkpoints"]
runpy.run_path("{TESTS_DIR}/soak/slurm_training.py", run_name="__main__")
"""

WORKER = "digits-ring-keras-worker"


def start(cluster: Cluster, objects: list[Object], node: int) -> Pod:
    """The launcher, on node 0, or the worker of another."""
    kind = "StatefulSet" if node else "Job"
    owner = find(objects, kind)
    name = f"{WORKER}-{node - 1}" if node else f"{owner['metadata']['name']}-x7f2q"
    return cluster.start(
        node,
        name,
        template=owner["spec"]["template"],
        objects=contents(objects),
        env={},
    )


def set_ready(cluster: Cluster, *nodes: int) -> None:
    """These have workers that the Service names."""
    domain = f"digits-ring-keras.{NAMESPACE}.svc.cluster.local"
    cluster.set_names({f"{WORKER}-{node - 1}.{domain}": node for node in nodes})


def test_a_launcher_waits_for_its_workers_and_runs_one_job_after_the_other(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    objects = render(**values, mode="statefulSet", nodes=2, slotsPerPod=2)
    set_ready(cluster, 1)
    first = start(cluster, objects, 0)
    workers = [start(cluster, objects, 1)]
    set_ready(cluster, 1, 2)
    workers.append(start(cluster, objects, 2))

    for launcher in (first, start(cluster, objects, 0)):
        assert launcher.wait(170) == 0, launcher.log
        assert "trained by 4 on 2 pods" in launcher.log

    for worker in workers:
        worker.terminate()
        assert worker.wait(60) == 143, worker.log


def test_workers_that_do_not_come_are_an_error_that_names_the_others(
    cluster: Cluster, values: dict[str, Any]
) -> None:
    soon = {"startTimeoutSeconds": 1}
    objects = render(**values, mode="statefulSet", nodes=2, ringrun=soon)
    set_ready(cluster, 2)

    launcher = start(cluster, objects, 0)

    assert launcher.wait(60) == 1
    assert "after 1 s there are not yet 2 workers" in launcher.log
    assert f"{WORKER}-1." in launcher.log


def test_an_elastic_job_goes_on_without_a_killed_worker_and_with_its_successor(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    work = tmp_path / "work"
    (work / "train.py").write_text(PROLOGUE + LOOP)
    options = {"options": ["--blacklist-cooldown-range", "0", "0"]}
    objects = render(
        **values,
        mode="statefulSet",
        nodes=2,
        elastic={"enabled": True},
        ringrun=options,
    )
    set_ready(cluster, 1, 2)
    workers = [start(cluster, objects, node) for node in (1, 2)]
    for worker in workers:
        worker.await_log("an agent waits")
    launcher = start(cluster, objects, 0)
    await_sizes(work, 0, "[2]", "[1, 2]", timeout_s=60)
    pid = (work / "pid.0").read_text()

    set_ready(cluster, 1)
    workers[1].kill()
    await_sizes(work, 0, "[2, 1]", "[1, 2, 1]", timeout_s=60)
    set_ready(cluster, 1, 2)
    start(cluster, objects, 2)

    await_sizes(work, 0, "[2, 1, 2]", "[1, 2, 1, 2]", timeout_s=90)
    (work / "stop").touch()
    assert launcher.wait(60) == 0, launcher.log
    assert (work / "end.0").read_text() == pid
    assert f"host {WORKER}-1" in launcher.log


def test_a_launcher_that_is_killed_starts_again_and_goes_on_from_a_checkpoint(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    work = tmp_path / "work"
    (work / "train.py").write_text(COUNTS)
    objects = render(**values, mode="statefulSet", nodes=2, elastic={"enabled": True})
    assert find(objects, "Job")["spec"]["backoffLimit"] == 3
    set_ready(cluster, 1, 2)
    workers = [start(cluster, objects, node) for node in (1, 2)]
    for worker in workers:
        worker.await_log("an agent waits")
    first = start(cluster, objects, 0)
    complete = "checkpoints/run-0001-step-000000000060.*.json"
    wait_until(lambda: len(list(work.glob(complete))) == 2, "a checkpoint", 90)

    first.kill()
    (work / "second").touch()
    second = start(cluster, objects, 0)

    assert second.wait(120) == 0, second.log
    for rank in (0, 1):
        # Four epochs: no example was trained on twice, and none was left out.
        ended = (work / "run.1" / f"end.{rank}").read_text().split()
        assert ended[:3] == ["4", "4", "0"]
    assert float((work / "run.1" / "steps.0").read_text().split()[4]) > 60
