"""Images and job scripts: what linters say, and whether ringrun takes them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import hcl2
import pytest
import yaml

pytestmark = pytest.mark.engines

DEPLOY = Path(__file__).parents[3] / "deploy"
TOOLS = Path(sys.executable).parent
SCRIPTS = sorted(
    path for kind in ("*.sbatch", "*.pbs", "*.bsub") for path in DEPLOY.rglob(kind)
)

# Notes the words that it gets, one a line.
RINGRUN = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


def run(*words: str | Path, **options: Any) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=60, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with a `ringrun` that shows what it was asked for."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ringrun").write_text(RINGRUN)
    (tmp_path / "bin" / "ringrun").chmod(0o755)
    return f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def check_by_ringrun(words: list[str], directory: Path) -> str:
    """What ringrun itself says that it would do, with a secret of its own."""
    secret = directory / "token"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    words = [
        f"--secret-file={secret}" if word.startswith("--secret-file=") else word
        for word in words
    ]
    return run(sys.executable, "-m", "ring_keras.launch", "--dry-run", *words)


def test_hadolint_finds_nothing_wrong() -> None:
    run(TOOLS / "hadolint", DEPLOY / "docker" / "Dockerfile")


def test_what_the_image_is_made_of_is_not_ignored() -> None:
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    for needed in ("ring_keras", "tf_ops", "build_support", "cmake", "examples"):
        assert needed not in ignored


def test_compose_starts_the_nodes_of_one_job(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())

    for node in range(2):
        service = compose["services"][f"node{node}"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        ringrun, *words = service["command"]
        assert ringrun == "ringrun"
        plan = check_by_ringrun(words, tmp_path)
        assert f"node {node} of 2, which meet at node0:4711: 2 ranks" in plan


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_job_scripts_run_ringrun(script: Path, tmp_path: Path, path: str) -> None:
    run(TOOLS / "shellcheck", script)
    variables = os.environ | {"PATH": path, "PBS_O_WORKDIR": str(tmp_path)}

    words = run("bash", script, env=variables).split()

    assert words[-2:] == ["python", "train.py"]
    if len(words) > 2:
        hosts = ["-H", "192.0.2.1:4,192.0.2.2:4,192.0.2.3:4"]
        assert "192.0.2.2" in check_by_ringrun([*hosts, *words], tmp_path)


@pytest.fixture
def nomad_task(tmp_path: Path) -> Path:
    """The folder of a Nomad task, with its script."""
    text = (DEPLOY / "nomad" / "train.nomad.hcl").read_text()
    jobs = hcl2.loads(text)["job"]
    assert "digits" in str(jobs)
    start = text.index("<<EOF\n") + len("<<EOF\n")
    (tmp_path / "local").mkdir()
    script = tmp_path / "local" / "start.sh"
    script.write_text(text[start : text.index("\nEOF\n")] + "\n")
    run(TOOLS / "shellcheck", "--shell=sh", script)
    return tmp_path


@pytest.mark.parametrize("index", [0, 1])
def test_nomads_allocations_are_the_nodes_of_one_job(
    nomad_task: Path, path: str, index: int
) -> None:
    (nomad_task / "local" / "rendezvous").write_text("192.0.2.1:4711" * index)
    variables = os.environ | {
        "PATH": path,
        "NOMAD_ALLOC_INDEX": str(index),
        "NOMAD_ADDR_rendezvous": f"192.0.2.{index + 1}:4711",
        "NOMAD_TASK_DIR": str(nomad_task / "local"),
        "NOMAD_SECRETS_DIR": str(nomad_task / "secrets"),
    }

    words = run("sh", nomad_task / "local" / "start.sh", env=variables).split()

    place = words.index("--secret-file")
    words[place : place + 2] = ["--secret-file="]
    plan = check_by_ringrun(words, nomad_task)
    assert f"node {index} of 2, which meet at 192.0.2.1:4711: 2 ranks" in plan
