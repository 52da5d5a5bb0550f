"""A real cluster of two nodes, both on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import wait_until_dead

ray = pytest.importorskip("ray", reason="`make test-engines`")
from ray.cluster_utils import Cluster  # noqa: E402

NODE = {"num_cpus": 4, "object_store_memory": 100 << 20}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Ray writes into it.
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Some reports are lost in what it says besides.
        patch.setenv("RAY_DEDUP_LOGS", "0")
        cluster = Cluster(
            initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
        )
        cluster.add_node(**NODE)
        ray.init(address=cluster.address)
        yield cluster
        started = [
            info.process.pid
            for node in cluster.list_all_nodes()
            for infos in node.all_processes.values()
            for info in infos
        ]
        ray.shutdown()
        cluster.shutdown()
        wait_until_dead(started)
        os.environ.pop("RAY_ADDRESS", None)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    """Where checkpoints lie."""
    return str(tmp_path / "storage")
