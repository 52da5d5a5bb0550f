"""What the chart renders: Kubernetes takes it, and it gives nothing away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml
from support.kubernetes.chart import (
    CHART,
    Object,
    contents,
    find,
    render,
    validate,
    with_image,
)

pytestmark = pytest.mark.engines

INFORMATION = 1

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all options": {
        "image": {"repository": "r.io/t", "tag": "1", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "workingDir": "/work",
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [{"configMapRef": {"name": "more"}}],
        "nodes": 16,
        "slotsPerPod": 8,
        "ringrun": {"options": ["--timestamps"], "startTimeoutSeconds": 3000000},
        "encrypt": True,
        "restarts": 0,
        "suspend": True,
        "activeDeadlineSeconds": 3000000,
        "ttlSecondsAfterFinished": 60,
        "resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "4"}},
        "gpu": {"perPod": 8},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "labels": {"kueue.x-k8s.io/queue-name": "research"},
        "annotations": {"example.org/a": "b"},
        "podLabels": {"example.org/c": "d"},
        "podAnnotations": {"example.org/e": "f"},
        "schedulerName": "volcano",
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"podAffinity": {}},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
            }
        ],
        "networkPolicy": {"egress": [{"ports": [{"port": 443}]}]},
    },
    "workers": {
        "mode": "statefulSet",
        "nodes": 3,
        "env": [{"name": "A", "value": "b"}],
        "gpu": {"perPod": 8},
        "launcher": {"resources": {"limits": {"memory": "1Gi"}}},
    },
    "elastic": {
        "mode": "statefulSet",
        "elastic": {"enabled": True, "minRanks": 2, "maxNodes": 8},
    },
    "secret and network of one's own": {
        "existingSecret": "mine",
        "networkPolicy": {"enabled": False},
    },
}

each_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())


def pods(objects: list[Object]) -> Iterator[Object]:
    for one in objects:
        if one["kind"] == "Pod":
            yield one
        elif "template" in one.get("spec", {}):
            yield one["spec"]["template"]


@each_values
def test_helm_finds_nothing_wrong(values: dict[str, Any]) -> None:
    report = helm_python.lint(CHART, with_image(values), strict=True)

    assert report["errors"] == []
    assert {one["severity"] for one in report["messages"]} <= {INFORMATION}


@each_values
def test_kubernetes_takes_each_object(values: dict[str, Any]) -> None:
    objects = render(**values)

    assert objects
    for one in objects:
        validate(one)


@pytest.mark.parametrize(
    "values",
    [
        {"node": 2},
        {"nodes": 0},
        {"gpu": {"count": 1}},
        {"image": {"name": "x"}},
        {"command": "python train.py"},
        {"networkPolicy": {"ingress": []}},
        {"port": 80},
        {"shm": {"sizeLimit": "much"}},
        {"restarts": -1},
        {"mode": "mpi"},
        {"elastic": {"enabled": True}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match=r"schema|specifications"):
        render(**values)


def test_an_image_must_be_given() -> None:
    with pytest.raises(helm_python.HelmError, match=r"image\.repository"):
        render(image={})


@each_values
def test_pods_are_restricted(values: dict[str, Any]) -> None:
    """As the Pod Security Standard of that name has it, and more."""
    for pod in pods(render(**values)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(key in spec for key in ("hostNetwork", "hostPID", "hostIPC"))
        for container in spec["initContainers"] + spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_secret_is_new_and_in_no_command_or_variable() -> None:
    objects = render()
    token = contents(objects)["Secret/digits-ring-keras"]["token"]

    assert len(bytes.fromhex(token)) == 32
    assert token != contents(render())["Secret/digits-ring-keras"]["token"]
    for pod in pods(objects):
        assert token not in str(pod)
        assert "secretKeyRef" not in str(pod)
        (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "secret")
        assert volume["secret"]["defaultMode"] == 0o400
        for container in pod["spec"]["containers"]:
            assert "secret" not in {m["name"] for m in container["volumeMounts"]}


def test_a_launcher_is_named_after_the_upgrade_and_its_workers_stay() -> None:
    first, second = (
        render(mode="statefulSet", revision=revision) for revision in (1, 2)
    )

    names = [find(objects, "Job")["metadata"]["name"] for objects in (first, second)]
    assert names == ["digits-ring-keras-launcher-1", "digits-ring-keras-launcher-2"]
    assert find(first, "StatefulSet") == find(second, "StatefulSet")


def test_a_secret_of_ones_own_is_used() -> None:
    objects = render(existingSecret="mine")

    assert all(one["kind"] != "Secret" for one in objects)
    (volume,) = (
        volume
        for volume in find(objects, "Job")["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "secret"
    )
    assert volume["secret"]["secretName"] == "mine"


def test_readme_and_schema_know_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    schema = helm_python.Chart.load(CHART).schema
    assert schema is not None

    def check(values: dict[str, Any], properties: dict[str, Any], path: str) -> None:
        for name, value in values.items():
            assert name in properties, f"{path}{name} is not in the schema"
            if value and isinstance(value, dict):
                check(value, properties[name]["properties"], f"{path}{name}.")
            else:
                assert f"`{path}{name}`" in readme, f"{path}{name} is not in README.md"

    check(yaml.safe_load((CHART / "values.yaml").read_text()), schema["properties"], "")
