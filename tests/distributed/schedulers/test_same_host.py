"""Who counts as being on one host, where names alone would mislead."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from support.engine_only import join
from support.run_ranks import run_ranks

from ring_keras import _native


def place_and_transport() -> tuple[int, int, str]:
    rank, _ = join()
    _, _, local_rank, local_size, _, _ = _native.topology()
    return local_rank, local_size, _native.transport_to(1 - rank)


@pytest.fixture(scope="module")
def unshare() -> list[str]:
    command = ["unshare", "--uts"]
    if subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("no UTS namespace can be made here")
    return command


def test_containers_of_one_name_are_hosts_of_their_own(unshare: list[str]) -> None:
    # A GPU's number means another GPU in each, so local ranks must be counted apart.
    prefix = [[], unshare]

    results = run_ranks(place_and_transport, 2, command_prefix=prefix)

    assert results == [(0, 1, "tcp"), (0, 1, "tcp")]


def test_ranks_that_share_a_name_by_their_launcher_are_one_host(
    unshare: list[str],
) -> None:
    env = {"RING_KERAS_HOST_NAME": os.uname().nodename}

    results = run_ranks(place_and_transport, 2, command_prefix=[[], unshare], env=env)

    assert results == [(0, 2, "shm"), (1, 2, "shm")]


def test_a_container_with_processes_of_its_own_is_reached_by_tcp(ranks: Any) -> None:
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*own, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    script = """
        join()
        print(_native.topology()[2:4], _native.transport_to(1 - rank), total("x"))
    """
    rank_0 = ranks.start(0, script)
    command = [sys.executable, str(ranks.directory / "script.py")]
    rank_1 = ranks.start_raw(1, [*own, *command])

    for rank, process in enumerate((rank_0, rank_1)):
        output, errors = process.communicate(timeout=60)
        assert output == f"({rank}, 2) tcp [3.0]\n", errors
