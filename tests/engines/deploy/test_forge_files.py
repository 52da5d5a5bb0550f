"""What a public forge reads, and who cites the package, by the formats' schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.engines

ROOT_DIR = Path(__file__).parents[3]
FORGE_DIR = ROOT_DIR / ".github"

CHECKED = {
    "vendor.github-workflows": sorted(FORGE_DIR.glob("workflows/*.yml")),
    "vendor.citation-file-format": [ROOT_DIR / "CITATION.cff"],
    "vendor.github-issue-config": [FORGE_DIR / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": [
        path
        for path in sorted(FORGE_DIR.glob("ISSUE_TEMPLATE/*.yml"))
        if path.name != "config.yml"
    ],
}


@pytest.mark.parametrize("schema", CHECKED)
def test_they_keep_to_their_schemas(schema: str) -> None:
    assert CHECKED[schema]
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", schema, *map(str, CHECKED[schema])),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_cited_is_this_version() -> None:
    about: dict[str, str] = {}
    exec((ROOT_DIR / "ring_keras" / "_version.py").read_text(), about)

    cited = yaml.safe_load((ROOT_DIR / "CITATION.cff").read_text())

    assert cited["version"] == about["__version__"]


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("checks", [".ci/run", "make test PYTHON=python"]),
        ("release", ['make release TAG="$GITHUB_REF_NAME" RELEASE_ARGS=--twice']),
    ],
)
def test_the_workflow_s_commands_are_there(workflow: str, expected: list[str]) -> None:
    path = FORGE_DIR / "workflows" / f"{workflow}.yml"
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [
        step["run"] for job in jobs.values() for step in job["steps"] if "run" in step
    ]

    ours = [line for line in commands if line.startswith((".ci/", "make "))]
    assert ours == expected
    assert (ROOT_DIR / ".ci" / "run").stat().st_mode & 0o111
