"""Runs what a page of the manual says, in the order in which a reader would."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.doc_pages import ROOT_DIR, Block, DocPage, name_of


class Reader:
    """Follows a page to the letter, in a directory of its own.

    Args:
        page: What to follow.
        directory: An empty one.
    """

    def __init__(self, page: DocPage, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._deadline = time.monotonic() + page.timeout_s

    def follow(self) -> None:
        """Raises AssertionError where something does not end as the page says."""
        for name in self._page.files:
            (self._directory / name).symlink_to(ROOT_DIR / name)
        for block in self._page.blocks:
            if block.title is not None:
                self._write(block)
            elif block.language == "console" and block.not_run is None:
                *before, last = block.commands()
                for command in before:
                    self._run(["bash", "-c", command], f"{block.where}: {command}")
                self._run(
                    ["bash", "-c", last], f"{block.where}: {last}", block.exit_code
                )
        self._run_script()

    def _write(self, block: Block) -> None:
        assert block.title is not None
        file = self._directory / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.code)

    def _run_script(self) -> None:
        script = self._page.script()
        if script is None:
            return
        # Its lines have the page's numbers, and tracebacks say so.
        file = self._directory / f"{self._page.path.name}.py"
        file.write_text(script)
        command = [sys.executable, file.name]
        if self._page.ranks > 1:
            command = ["ringrun", "-np", str(self._page.ranks), *command]
        self._run(command, f"the script of {name_of(self._page.path)}")

    def _run(self, command: list[str], what: str, exit_code: int = 0) -> None:
        """Waits for its end, and leaves nothing running that it has started."""
        programs = str(Path(sys.executable).parent)
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=os.environ
            | {
                "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
                "PYTHONPATH": os.pathsep.join(
                    [str(ROOT_DIR), os.environ.get("PYTHONPATH", "")]
                ),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(
                    timeout=max(1.0, self._deadline - time.monotonic())
                )
            except subprocess.TimeoutExpired as late:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                raise AssertionError(
                    f"{what}\nnot within the {self._page.timeout_s} s that its page "
                    f"may take. It printed:\n{output[-6000:]}"
                ) from late
            finally:
                _end_group(process.pid)
        assert process.returncode == exit_code, (
            f"{what}\nended with exit code {process.returncode}, not {exit_code}. "
            f"It printed:\n{output[-6000:]}"
        )


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
