"""What is said of ranks that SIGKILL ended: was it for lack of memory?"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.memory_limit import memory_limit
from support.ringrun import Ringrun

LIMIT_NBYTES = 192 * 2**20
# More than the limit, and each page is written to.
EAT = f"""
eaten = bytearray()
for _ in range({2 * LIMIT_NBYTES // 2**20}):
    eaten += bytes([1]) * 2**20
"""


def limited() -> AbstractContextManager[list[str]]:
    return memory_limit(f"ring_keras_test_{os.getpid()}", LIMIT_NBYTES)


def run_limited(directory: Path, script: str) -> str:
    with limited() as prefix:
        ringrun = Ringrun(directory, prefix)
        try:
            return ringrun.run(script).verdict
        finally:
            ringrun.close()


def test_the_oom_killer_is_named_with_the_limit_and_the_peak(tmp_path: Path) -> None:
    verdict = run_limited(
        tmp_path,
        f"""
    if rank == 1:
        note("pid1", os.getpid())
        exec({EAT!r})
    wait_for_the_end_of("pid1")
    """,
    )

    found = re.search(
        r"rank 1 .* was killed by SIGKILL after [\d.]+ s: the kernel's OOM killer "
        r"chose it, as its cgroup is limited to 192 MiB; "
        r"its peak memory was (\d+) MiB; the other",
        verdict,
    )
    assert found, verdict
    assert 96 < int(found[1]) <= 192


def test_a_child_that_the_oom_killer_chose_is_told_of(tmp_path: Path) -> None:
    # As a process that loads data would be.
    verdict = run_limited(
        tmp_path,
        f"""
    if rank == 1:
        loaded = subprocess.run([sys.executable, "-c", {EAT!r}])
        sys.exit("a loader died" if loaded.returncode else 0)
    """,
    )

    assert re.search(
        r"rank 1 .* exited with code 1 after [\d.]+ s; before, the kernel's OOM killer "
        r"killed a process of its cgroup(; the other .*)?$",
        verdict,
    ), verdict


def test_a_rank_in_a_cgroup_of_its_own_is_found_in_the_kernels_log(ringrun) -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read")

    with limited() as prefix:
        command = ["-np", "1", *prefix, sys.executable, "-c", EAT]
        finished = ringrun.finish(ringrun.start_raw(*command))

    assert re.search(
        "the kernel's OOM killer chose it, as its cgroup had no more memory; its peak",
        finished.verdict,
    ), finished.verdict
