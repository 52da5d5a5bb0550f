"""Real shells complete ringrun's words, and those of the command behind them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.terminal import Terminal

from ring_keras.config import Config
from ring_keras.launch.cli import make_parser
from ring_keras.launch.completion.option_words import option_words

pytestmark = pytest.mark.engines

Complete = Callable[[str], list[str]]

BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
TAB = "\t"


def script(shell: str, directory: Path) -> Path:
    path = directory / f"completion.{shell}"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-m", "ring_keras.launch", "--print-completion", shell],
            stdout=file,
            timeout=60,
            check=True,
        )
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a script, a list of hosts, and a program."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").touch()
    (here / "hosts").touch()
    program = tmp_path / "bin" / "ring-only-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return here


class Shell:
    """A shell at a terminal, in which ringrun prints its words."""

    def __init__(self, command: list[str], here: Path, setup: str) -> None:
        self._terminal = Terminal()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=self._terminal.fd,
            stdout=self._terminal.fd,
            stderr=self._terminal.fd,
            cwd=here,
            env={
                "HOME": str(here),
                "PATH": f"{here.parent / 'bin'}:{os.environ['PATH']}",
                "TERM": "dumb",
                "LC_ALL": "C.UTF-8",
            },
        )
        # Not in one piece, or what is typed would be found.
        self._terminal.type(setup + "; printf '%s%s\\n' READ Y\n")
        self._terminal.read_until(rb"READY")

    def complete(self, text: str) -> list[str]:
        """The words that ringrun got when that was typed, and Enter pressed."""
        self._terminal.type(f"{text}\n")
        found = self._terminal.read_until(rb"<<(.*?)>>")
        words = found[1].decode().split("|")[:-1]
        # Zsh sets an equals sign between an option and its value.
        return [
            part
            for word in words
            for part in (word.split("=", 1) if word.startswith("--") else [word])
        ]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=20)
        self._terminal.close()


RINGRUN = "ringrun() { printf '%s' '<' '<'; printf '%s|' \"$@\"; printf '%s' '>' '>'; }"


@pytest.fixture(params=["bash", "bash, bash-completion", "zsh"])
def shell(
    request: pytest.FixtureRequest, here: Path, tmp_path: Path
) -> Iterator[Complete]:
    name, _, with_completion = request.param.partition(", ")
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}; Debian's package has its name")
    path = script(name, tmp_path)
    if name == "zsh":
        command = ["zsh", "-f", "-i"]
        setup = f"autoload -Uz compinit; compinit -u -D; source {path}; {RINGRUN}"
    else:
        command = ["bash", "--norc", "--noprofile", "-i"]
        setup = f"source {path}; {RINGRUN}"
        if with_completion:
            if not BASH_COMPLETION.exists():
                pytest.skip("there is no bash-completion; Debian's has that name")
            setup = f"source {BASH_COMPLETION}; {setup}"
    shell = Shell(command, here, setup)
    yield shell.complete
    shell.close()


def test_a_shell_completes(shell: Complete) -> None:
    # Options, and what may follow them.
    assert shell(f"ringrun --bind-t{TAB}no{TAB}") == ["--bind-to", "none"]
    assert shell(f"ringrun --hostfi{TAB}ho{TAB}") == ["--hostfile", "hosts"]
    assert shell(f"ringrun -H a:4,b:4 --check-b{TAB}") == [
        "-H",
        "a:4,b:4",
        "--check-build",
    ]
    # The command, what follows it, and its options, which are none of ringrun's.
    assert shell(f"ringrun -np 2 ring-on{TAB}") == ["-np", "2", "ring-only-program"]
    words = ["-np", "2", "ring-only-program"]
    assert shell(f"ringrun {' '.join(words)} tr{TAB}") == [*words, "train.py"]
    assert shell(f"ringrun {' '.join(words)} --bind-t{TAB}") == [*words, "--bind-t"]
    assert shell(f"ringrun -x A=b -- ring-only-program --x tr{TAB}") == [
        *("-x", "A=b", "--", "ring-only-program", "--x", "train.py")
    ]


def test_fish_completes(here: Path, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish; Debian's package has its name")
    path = script("fish", tmp_path)

    def complete(text: str) -> list[str]:
        ended = subprocess.run(
            ["fish", "--no-config", "-c", f"source {path}; complete -C '{text}'"],
            cwd=here,
            env=os.environ
            | {
                "HOME": str(here),
                "PATH": f"{here.parent / 'bin'}:{os.environ['PATH']}",
                "TERM": "dumb",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stderr == ""
        return [line.split("\t")[0] for line in ended.stdout.splitlines()]

    assert complete("ringrun --bind-t") == ["--bind-to"]
    assert set(complete("ringrun --bind-to ")) == {"none", "cores"}
    assert complete("ringrun --hostfile ho") == ["hosts"]
    assert complete("ringrun -np 2 ring-on") == ["ring-only-program"]
    assert complete("ringrun -np 2 ring-only-program tr") == ["train.py"]
    assert complete("ringrun -np 2 ring-only-program --bind-t") == []
    assert complete("ringrun -x A=b -- ring-only-program --x tr") == ["train.py"]


def test_words_that_follow_an_option_are_taken() -> None:
    options = {option.names[0]: option for option in option_words(make_parser())}

    for name in ("--log-level", "--transport"):
        variable = f"RING_KERAS_{name[2:].replace('-', '_').upper()}"
        for word in options[name].words:
            Config.from_environment({variable: word})


def test_every_option_that_help_shows_is_known() -> None:
    parser = make_parser()
    entries = re.findall(r"^  (-.*?)(?:  |$)", parser.format_help(), re.MULTILINE)
    shown = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", " ".join(entries)))

    known = {name for option in option_words(parser) for name in option.names}

    assert len(shown) > 60
    assert shown == known
