"""Checks of hosts whose limits are real, and lowered for the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.doctor import findings_of
from support.memory_limit import memory_group

from ring_keras.launch.control_group import own_group

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

NOBODY = 65534


def test_the_store_of_4096_ranks_needs_more_descriptors_than_there_are() -> None:
    found = findings_of(
        "descriptors",
        before=["prlimit", "--nofile=1024:1024"],
        local_size=1,
        size=4096,
        hosts=4096,
    )["open files"]

    assert found["state"] == "failure"
    needed = found["measured"]["needed"]
    assert needed >= 4096 + 4096  # The store holds a connection to each, and to agents.
    assert found["measured"]["hard_limit"] == 1024
    wanted = found["measured"]["wanted"]
    # In a file, for all logins; a container's limits are set from outside.
    assert f"nofile {2 * wanted}" in found["fix"] or "docker" in found["fix"]


def test_two_ranks_need_few_and_it_says_how_many_would_do() -> None:
    found = findings_of("descriptors", before=["prlimit", "--nofile=1024:4096"])

    assert found["open files"]["state"] == "ok"
    measured = found["open files"]["measured"]
    # The hard limit counts: ring_keras raises its own up to it.
    assert measured["hard_limit"] == 4096
    assert 900 < measured["largest_size"] < 4096
    assert (
        f"enough for {measured['largest_size']:,} ranks" in found["open files"]["found"]
    )


def test_ranks_over_tcp_alone_need_more() -> None:
    limit = ["prlimit", "--nofile=560:560"]
    job = {"local_size": 64}

    shared = findings_of("descriptors", before=limit, **job)
    by_tcp = findings_of(
        "descriptors", before=limit, env={"RING_KERAS_TRANSPORT": "tcp"}, **job
    )

    assert shared["open files"]["state"] == "ok"
    assert by_tcp["open files"]["state"] == "warning"
    assert "alltoall" in by_tcp["open files"]["expected"]


def test_the_command_that_mends_descriptors_does() -> None:
    """In the shell in which it is given."""
    job = {"local_size": 2000}
    limit = ["prlimit", "--nofile=1024:1024"]
    found = findings_of("descriptors", before=limit, **job)["open files"]
    assert found["state"] == "failure"
    if not found["fix"].startswith("prlimit"):
        pytest.skip("needs root, outside of a container")

    fixed = findings_of(
        "descriptors",
        before=[*limit, "sh", "-c", f'{found["fix"]}; exec "$@"', "sh"],
        **job,
    )

    assert fixed["open files"]["state"] == "ok"


@needs_root
def test_a_user_may_have_too_few_processes() -> None:
    limited = ["prlimit", "--nproc=50"]
    found = findings_of("processes", before=limited, user=NOBODY, local_size=8)

    found = found["processes"]
    assert found["state"] == "warning"
    assert found["measured"]["limit"] == 50
    assert found["fix"].startswith(
        ("sudo prlimit --pid $$ --nproc=", "docker run --ulimit nproc=")
    )


@needs_root
def test_a_control_group_may_have_too_few_processes(tmp_path: Path) -> None:
    own = own_group("pids", {1: "cgroup.procs", 2: "pids.max"})
    if own is None:
        pytest.skip("no control group counts processes here")
    group = own.directory / f"ring-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        (group / "pids.max").write_text("20")
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]

        found = findings_of("processes", before=enter)["cgroup processes"]
        (group / "pids.max").write_text("max")
        fixed = findings_of("processes", before=enter)["cgroup processes"]
    finally:
        group.rmdir()
    assert found["state"] == "warning"
    assert found["measured"]["limit"] == 20
    assert found["fix"] in (
        f"echo max > {group}/pids.max",
        f"docker run --pids-limit={found['fix'].split('=')[-1]}",
    )
    assert fixed["state"] == "ok"


@needs_root
def test_a_control_group_may_have_too_little_memory() -> None:
    with memory_group(f"ring-doctor-{os.getpid()}", 1 << 30) as group:
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        one = findings_of("memory", before=enter, local_size=1)["cgroup memory"]
        two = findings_of("memory", before=enter, local_size=2)["cgroup memory"]

    assert one["state"] == "ok"
    assert two["state"] == "warning"
    assert two["measured"]["limit_bytes"] == 1 << 30
    assert str(group) in two["fix"] or "docker run --memory=" in two["fix"]


@needs_root
def test_a_control_group_may_give_too_little_time() -> None:
    own = own_group("cpu", {1: "cgroup.procs", 2: "cpu.max"})
    if own is None:
        pytest.skip("no control group shares out cores here")
    group = own.directory / f"ring-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if own.version == 1:
            (group / "cpu.cfs_quota_us").write_text("150000")
        else:
            (group / "cpu.max").write_text("150000 100000")
        enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]

        found = findings_of("cores", before=enter)["cgroup cores"]
        alone = findings_of("cores", before=enter, local_size=1)["cgroup cores"]
    finally:
        group.rmdir()
    assert found["state"] == "warning"
    assert found["measured"] == {"cores": 1.5}
    assert str(group) in found["fix"] or found["fix"].startswith("docker run --cpus=2")
    assert alone["state"] == "ok"


def test_fewer_cores_than_ranks() -> None:
    (first, *_) = sorted(os.sched_getaffinity(0))

    found = findings_of("cores", before=["taskset", "--cpu-list", str(first)])["cores"]

    assert found["state"] == "warning"
    assert found["measured"]["allowed"] == 1


def test_no_room_to_map_shared_memory() -> None:
    limited = ["prlimit", f"--as={8 << 30}:{8 << 30}"]

    assert findings_of("memfd")["transport shm"]["state"] == "ok"
    found = findings_of("memfd", before=limited)["transport shm"]

    assert found["state"] == "warning"
    assert "cannot map 20 GiB" in found["found"]
    assert found["fix"] == "ulimit -v unlimited"


def test_a_limit_of_files_is_one_of_memory() -> None:
    """Grid Engine's h_fsize, say."""
    limited = ["prlimit", "--fsize=1000000"]

    found = findings_of("memfd", before=limited)["transport shm"]

    assert found["state"] == "warning"
    assert "a file of 20 GiB: File too large" in found["found"]
    assert found["fix"] == "ulimit -f unlimited"


def test_settings_that_no_rank_would_take() -> None:
    env = {"RING_KERAS_TCP_STREAMS": "many"}

    found = findings_of("settings", env=env)["settings"]

    assert found["state"] == "failure"
    assert "RING_KERAS_TCP_STREAMS" in found["found"]


def test_encryption_is_looked_at_where_it_is_wanted() -> None:
    idle = findings_of("encryption")["encryption"]
    wanted = findings_of("encryption", env={"RING_KERAS_ENCRYPT": "1"})["encryption"]

    assert idle["state"] == "not applicable"
    assert wanted["state"] in ("ok", "failure")
    if wanted["state"] == "failure":
        assert "OpenSSL" in wanted["found"]
