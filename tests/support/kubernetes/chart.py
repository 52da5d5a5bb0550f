"""The Helm chart, rendered by Helm's own code."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import kubernetes_validate.utils
import yaml

ROOT_DIR = Path(__file__).parents[3]
CHART = ROOT_DIR / "deploy" / "helm" / "ring-keras"
RELEASE, NAMESPACE = "digits", "ml"

# The oldest that the chart takes, and the newest that there are.
VERSIONS = ["1.30", *kubernetes_validate.utils.all_versions()[-3:]]

Object = dict[str, Any]


def with_image(values: Object) -> Object:
    """The values, with the one that must be given."""
    return {"image": {"repository": "example.org/train"}} | values


def render(revision: int = 1, **values: Any) -> list[Object]:
    """The objects that an installation would make, or its upgrade."""
    files = helm_python.Chart.load(CHART).render(
        with_image(values), name=RELEASE, namespace=NAMESPACE, revision=revision
    )
    documents = [
        document
        for name, text in sorted(files.items())
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
    ]
    return [document for document in documents if document]


def find(objects: list[Object], kind: str, name: str = "") -> Object:
    """The one of this kind, whose name has that ending."""
    (found,) = (
        one
        for one in objects
        if one["kind"] == kind and one["metadata"]["name"].endswith(name)
    )
    return found


def contents(objects: list[Object]) -> dict[str, dict[str, str]]:
    """What is in Secrets and ConfigMaps, by kind and name: `Secret/a`."""
    found = {}
    for one in objects:
        if one["kind"] in ("Secret", "ConfigMap"):
            data = dict(one["data"])
            if one["kind"] == "Secret":
                data = {
                    name: base64.b64decode(text).decode() for name, text in data.items()
                }
            found[f"{one['kind']}/{one['metadata']['name']}"] = data
    return found


def validate(one: Object) -> None:
    """Raises if some version of Kubernetes would refuse it."""
    for version in VERSIONS:
        kubernetes_validate.validate(one, version, strict=True)
