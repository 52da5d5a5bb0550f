"""`ringrun --check-build` on this host, and on two that are both this one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from support.doctor import ROOT_DIR, check_build, environment

SCHEMA = json.loads((ROOT_DIR / "docs" / "doctor.schema.json").read_text())

# Takes the place of ssh: runs the command here.
SHELL = '#!/bin/sh\nshift\nexec "$@"\n'


def text_of(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", *options, "--check-build"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_this_host() -> None:
    finished = text_of("-np", "3")

    assert finished.returncode == (1 if "[NO]" in finished.stdout else 0)
    assert re.match(r"\S+, for 3 ranks:\n", finished.stdout)
    checks = re.findall(r"^  \[(?:ok|NO|!!|--)\] (\S.*?)  ", finished.stdout, re.M)
    for check in (
        *("ring_keras", "C++ core", "TensorFlow", "operations", "transport shm"),
        *("/dev/shm", "huge pages", "open files", "processes", "cgroup memory"),
        *("cores", "NUMA", "GPU peer access", "memory bandwidth", "transport tcp"),
    ):
        assert check in checks
    # Whatever is wrong comes with what fixes it.
    bad = re.findall(r"^  \[(?:NO|!!)\]", finished.stdout, re.MULTILINE)
    assert len(re.findall(r"^ +fix: \S", finished.stdout, re.MULTILINE)) == len(bad)


@pytest.mark.slow
def test_two_hosts(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text(SHELL)
    shell.chmod(0o755)

    checked = check_build(
        *("-H", "first.invalid:2,second.invalid:1", "--remote-shell", str(shell))
    )

    jsonschema.validate(checked.report, SCHEMA)
    assert [(host["name"], host["ranks"]) for host in checked.report["hosts"]] == [
        ("first.invalid", 2),
        ("second.invalid", 1),
    ]
    (versions,) = checked.between("versions")
    (clocks,) = checked.between("clocks")
    assert versions["state"] == clocks["state"] == "ok"
    assert clocks["measured"]["largest_s"] <= clocks["measured"]["uncertainty_s"]
    # Where this host has an address but loopback.
    for found in checked.between("bandwidth"):
        assert found["measured"]["bytes_per_s"] > 0
    for host in ("first.invalid", "second.invalid"):
        (directory,) = checked.of_host(host, "directory")
        assert directory["state"] == "ok"
    states = [
        found["state"]
        for part in [
            *checked.report["hosts"],
            {"findings": checked.report["between_hosts"]},
        ]
        for found in part["findings"]
    ]
    assert checked.returncode == int("failure" in states)


def test_a_host_that_cannot_be_reached(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text(
        f"#!/bin/sh\n[ $1 = gone.invalid ] && exit 255\n{SHELL.partition(chr(10))[2]}"
    )
    shell.chmod(0o755)

    checked = check_build(
        *("-H", "there.invalid,gone.invalid", "--remote-shell", str(shell))
    )

    assert checked.returncode == 1
    assert checked.report["state"] == "failure"
    (found,) = checked.of_host("gone.invalid", "agent")
    assert "its agent ended with code 255 at once" in found["found"]
    assert found["fix"].startswith(f"{shell} gone.invalid {sys.executable} -m ")
    (core,) = checked.of_host("there.invalid", "C++ core")
    assert core["state"] == "ok"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--json -np 2 true", "--json needs --check-build"),
        (
            "-np 2 --check-build python train.py",
            "--check-build takes no command",
        ),
        (
            "--nnodes 2 --node-rank 0 --nproc-per-node 1 --rendezvous h:1 "
            "--secret-file secret --check-build",
            "--check-build checks this host, or the hosts that -H names",
        ),
    ],
)
def test_options_that_do_not_go_together(
    options: str, said: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0" * 64)
    secret.chmod(0o600)

    finished = subprocess.run(
        [sys.executable, "-m", "ring_keras.launch", *shlex.split(options)],
        cwd=tmp_path,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 2
    assert finished.stderr.endswith(f"error: {said}\n")
