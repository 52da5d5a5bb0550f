"""A cluster whose pods are processes of this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kubernetes.cluster import Cluster

# Other tests are run in environments without Helm.
if importlib.util.find_spec("helm_python") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes without pods."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    nodes = Cluster(3, tmp_path / "cluster")
    try:
        nodes.make()
    except (OSError, subprocess.CalledProcessError) as error:
        nodes.remove()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield nodes
    nodes.remove()


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    """Values that bring a folder of this machine's along, `work`."""
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)  # For the pods' user.
    return {
        "command": ["python", "train.py"],
        "workingDir": "/job",
        "volumes": [{"name": "work", "hostPath": {"path": str(work)}}],
        "volumeMounts": [{"name": "work", "mountPath": "/job"}],
    }
