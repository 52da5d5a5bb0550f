"""The man page of ringrun, as manual page readers take it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from build_support.man_page import man_page
from ring_keras.launch.cli import make_parser
from ring_keras.launch.completion.option_words import option_words

pytestmark = pytest.mark.engines


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "ringrun.1"
    path.write_text(man_page())
    return path


def run(*command: str | Path) -> str:
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("mandoc", "-T", "lint", "-W", "warning"),
        ("groff", "-ww", "-man", "-z", "-T", "utf8"),
    ],
    ids=["mandoc", "groff"],
)
def test_no_reader_warns_of_it(page: Path, command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}; Debian's package has its name")
    assert run(*command, page) == ""


def test_man_shows_every_option_with_its_dashes(page: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("there is no man; Debian's is in man-db")
    shown = run(
        "env", "MANWIDTH=200", "LC_ALL=C.UTF-8", "man", "-l", "--warnings", page
    )
    shown = re.sub(r".\x08", "", shown)

    for option in option_words(make_parser()):
        for name in option.names:
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown), name
    for section in ("SYNOPSIS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES"):
        assert re.search(rf"^{section}$", shown, re.MULTILINE), section
    assert 'eval "$(ringrun --print-completion bash)"' in shown


def test_builds_of_one_date_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

    assert man_page() == man_page()
    assert '.TH RINGRUN 1 "1970-01-02" ' in man_page()
