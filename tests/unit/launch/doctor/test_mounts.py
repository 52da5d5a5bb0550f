"""Checks of what the kernel shows, with something else mounted in its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.doctor import findings_of

from ring_keras.launch.doctor.host import governor, huge_pages
from ring_keras.launch.doctor.job_shape import JobShape

JOB = JobShape(2, 2, 1, True, False, "/")


def mounted(*commands: str) -> list[str]:
    """The words before a command that see these mounts alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    script = " && ".join([*commands, 'exec "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def test_a_small_dev_shm_and_the_command_that_mends_it() -> None:
    small = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    found = findings_of("shm_mount", before=mounted(small))["/dev/shm"]

    assert found["state"] == "warning"
    assert found["measured"]["size_bytes"] == 64 << 10
    if found["fix"].startswith("docker"):
        return
    fixed = findings_of("shm_mount", before=mounted(small, found["fix"]))
    assert fixed["/dev/shm"]["state"] == "ok"


def test_no_dev_shm() -> None:
    hidden = mounted("mount -t tmpfs -o ro tmpfs /dev")

    found = findings_of("shm_mount", before=hidden)["/dev/shm"]

    assert found["state"] == "warning"
    assert "there is none" in found["found"]


def test_a_card_that_locks_memory() -> None:
    card = mounted(
        "mount -t tmpfs tmpfs /sys/class",
        "mkdir -p /sys/class/infiniband/mlx5_0",
        'exec prlimit --memlock=65536:65536 "$@"',
    )

    found = findings_of("locked_memory", before=card)["locked memory"]
    without = findings_of("locked_memory")["locked memory"]

    assert found["state"] == "warning"
    assert "64 KiB, with mlx5_0" in found["found"]
    assert "memlock" in found["fix"]
    if not Path("/sys/class/infiniband").is_dir():
        assert without["state"] == "not applicable"


@pytest.mark.parametrize("word", ["never", "advise"])
def test_huge_pages(tmp_path: Path, word: str) -> None:
    switch = tmp_path / "shmem_enabled"
    words = "always within_size advise never deny force"
    switch.write_text(words.replace(word, f"[{word}]") + "\n")

    (found,) = huge_pages.check(JOB, switch)

    assert found.state.value == ("ok" if word == "advise" else "warning")
    if word == "never":
        assert found.fix in (
            f"echo advise > {switch}",
            f"echo advise | sudo tee {switch}",
        )


@pytest.mark.parametrize(
    ("driver", "state"), [("acpi-cpufreq", "warning"), ("intel_pstate", "ok")]
)
def test_the_lowest_frequency(tmp_path: Path, driver: str, state: str) -> None:
    for number in range(2):
        directory = tmp_path / f"cpu{number}" / "cpufreq"
        directory.mkdir(parents=True)
        (directory / "scaling_governor").write_text("powersave\n")
        (directory / "scaling_driver").write_text(f"{driver}\n")

    (found,) = governor.check(JOB, tmp_path)

    assert found.state.value == state


def test_two_numa_nodes() -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    commands = ["mount -t tmpfs tmpfs /sys/devices/system/cpu"]
    for number, core in enumerate(cores):
        commands.append(f"mkdir -p /sys/devices/system/cpu/cpu{core}/node{number % 2}")

    found = findings_of("numa", before=mounted(*commands))["NUMA"]
    bound = findings_of("numa", before=mounted(*commands), bind_to_cores=True)["NUMA"]

    assert found["state"] == "warning"
    assert found["measured"] == {"nodes": 2}
    assert found["fix"] == "ringrun -np 2 --bind-to cores ..."
    assert bound["state"] == "ok"
