"""Where the kernel shows this process's cgroup, in the layouts that are about."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ring_keras.launch.control_group import MemoryCgroup, cpu_limit, usable_cores
from ring_keras.launch.oom_kills import OomKills

UNLIMITED_V1 = "9223372036854771712\n"


def make_proc(tmp_path: Path, *, cgroup: str, mount: str) -> Path:
    """A /proc with these lines; mount points are below `tmp_path`."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(cgroup)
    root, _, rest = mount.partition(" ")
    line = f"36 25 0:30 {root} {tmp_path / 'sys'} rw,nosuid - {rest}\n"
    other = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    (proc / "self" / "mountinfo").write_text(other + line)
    return proc


def write_group(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_version_2_with_limits_around_it(tmp_path: Path) -> None:
    proc = make_proc(
        tmp_path, cgroup="0::/pods/own\n", mount="/ cgroup2 cgroup2 rw,nsdelegate"
    )
    write_group(tmp_path / "sys" / "pods", memory__max="1073741824\n")
    own = write_group(
        tmp_path / "sys" / "pods" / "own",
        memory__events="low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 7\n",
        memory__max="max\n",
    )

    group = MemoryCgroup.of_this_process(proc)

    assert group is not None
    assert group.oom_counter == (own / "memory.events", "oom_kill")
    assert group.limit_nbytes() == 2**30


@pytest.mark.parametrize(
    ("cgroup", "mount"),
    [
        # A container whose mount begins at its own group.
        (
            "9:cpu:/docker/c1\n4:memory:/docker/c1\n",
            "/docker/c1 cgroup cgroup rw,memory",
        ),
        # With a namespace of its own for groups, and version 2 beside.
        ("4:memory:/\n0::/\n", "/ cgroup cgroup rw,memory"),
    ],
)
def test_version_1_in_a_container(tmp_path: Path, cgroup: str, mount: str) -> None:
    proc = make_proc(tmp_path, cgroup=cgroup, mount=mount)
    own = write_group(
        tmp_path / "sys",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        memory__limit_in_bytes=UNLIMITED_V1,
    )

    group = MemoryCgroup.of_this_process(proc)

    assert group is not None
    assert group.oom_counter == (own / "memory.oom_control", "oom_kill")
    assert group.limit_nbytes() is None


def test_mounts_of_others_are_no_matter(tmp_path: Path) -> None:
    """A path in another encoding, a mount without a source, a path with a space."""
    proc = make_proc(
        tmp_path, cgroup="0::/own\n", mount="/ cgroup2 cgroup2 rw,nsdelegate"
    )
    mounts = proc / "self" / "mountinfo"
    line = mounts.read_bytes().splitlines()[1].replace(b"/sys", b"/a\\040place")
    strange = b"29 25 0:40 / /media/caf\xe9 rw - vfat /dev/sdb1 rw\n"
    nameless = b"31 25 0:41 / /mnt rw - tmpfs  rw\n"
    mounts.write_bytes(strange + nameless + line + b"\n")
    own = write_group(
        tmp_path / "a place" / "own", memory__events="oom_kill 0\n", memory__max="4096"
    )

    group = MemoryCgroup.of_this_process(proc)

    assert group is not None
    assert group.oom_counter == (own / "memory.events", "oom_kill")
    assert group.limit_nbytes() == 4096


@pytest.mark.parametrize(("quota", "cores"), [("max", None), ("150000", 2), ("1", 1)])
def test_the_time_of_cores_in_version_2(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    proc = make_proc(tmp_path, cgroup="0::/pod/own\n", mount="/ cgroup2 cgroup2 rw")
    write_group(tmp_path / "sys" / "pod", cpu__max=f"{quota} 100000\n")
    write_group(tmp_path / "sys" / "pod" / "own", cpu__max="max 100000\n")

    allowed = len(os.sched_getaffinity(0))
    assert usable_cores(proc) == min(cores or allowed, allowed)


def test_the_time_of_cores_in_version_1(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, cgroup="3:cpu:/\n", mount="/ cgroup cgroup rw,cpu")
    write_group(tmp_path / "sys", cpu__cfs_quota_us="-1\n")
    files = {"cpu__cfs_quota_us": "50000\n", "cpu__cfs_period_us": "100000\n"}
    assert usable_cores(proc) == len(os.sched_getaffinity(0))

    own = write_group(tmp_path / "sys", **files)

    assert cpu_limit(proc) == (0.5, own / "cpu.cfs_quota_us")
    assert usable_cores(proc) == 1


def test_no_group(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, cgroup="0::/\n", mount="/ cgroup2 cgroup2 rw")

    assert MemoryCgroup.of_this_process(proc) is None


def test_each_kill_is_told_of_once(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, cgroup="0::/own\n", mount="/ cgroup2 cgroup2 rw")
    own = write_group(
        tmp_path / "sys" / "own",
        memory__events="oom_kill 4\n",
        memory__max=str(3 * 2**30),
    )
    (proc / "vmstat").write_text("pgfault 12\noom_kill 6\n")
    kills = OomKills(proc, tmp_path / "no_log")

    (own / "memory.events").write_text("oom_kill 5\n")
    (proc / "vmstat").write_text("pgfault 12\noom_kill 7\n")

    assert kills.describe(100, -9, 5 * 2**29) == (
        ": the kernel's OOM killer chose it, as its cgroup is limited to 3.0 GiB; "
        "its peak memory was 2.5 GiB"
    )
    assert kills.describe(101, -9, 2**20).startswith(": not by the kernel's OOM killer")
    assert kills.describe(102, 1, 2**20) == ""


def test_a_kill_elsewhere_on_the_host_may_have_been_this_one(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, cgroup="0::/\n", mount="/ cgroup2 cgroup2 rw")
    (proc / "vmstat").write_text("oom_kill 6\n")
    kills = OomKills(proc, tmp_path / "no_log")

    (proc / "vmstat").write_text("oom_kill 7\n")

    assert kills.describe(100, 137, 2**20).startswith(": perhaps the kernel's OOM")


def test_a_kernel_that_counts_nothing_knows_nothing(tmp_path: Path) -> None:
    kills = OomKills(tmp_path, tmp_path / "no_log")

    assert kills.describe(100, -9, 2**20).startswith(": whether for lack of memory")
