"""`ring_keras.run` in the cells of a real kernel of Jupyter's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_until_dead

nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

import nbformat  # noqa: E402
from jupyter_client.manager import start_new_kernel  # noqa: E402

_ROOT_DIR = Path(__file__).parents[3]
DOCUMENT = _ROOT_DIR / "docs" / "notebooks.md"
EXAMPLE = _ROOT_DIR / "examples" / "notebook.ipynb"

_TIMEOUT_S = 200


class Kernel:
    """Runs cells one after the other, as a notebook does."""

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(
            startup_timeout=100, kernel_name="python3"
        )
        self.interrupt = self._manager.interrupt_kernel

    def run(
        self, cell: str, on_output: Callable[[str], None] = lambda _: None
    ) -> tuple[dict[str, Any], str]:
        """The reply, and what is shown below the cell.

        Args:
            cell: The code.
            on_output: Called with all that is shown, each time that there is more.
        """
        shown = ""

        def take(message: dict[str, Any]) -> None:
            nonlocal shown
            if message["msg_type"] == "stream":
                shown += message["content"]["text"]
                on_output(shown)

        reply = self._client.execute_interactive(
            cell, timeout=_TIMEOUT_S, output_hook=take
        )
        return reply["content"], shown

    def close(self) -> None:
        """Ends it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(name="own_settings", autouse=True)
def _own_settings(tmp_path, monkeypatch):
    """Nothing of this user's."""
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))


@pytest.fixture(name="kernel")
def _kernel(own_settings) -> Iterator[Kernel]:
    kernel = Kernel()
    try:
        reply, _ = kernel.run("import os, time\nimport ring_keras as ring")
        assert reply["status"] == "ok", reply
        yield kernel
    finally:
        kernel.close()


def test_a_cell_shows_output_and_progress_at_once(kernel, tmp_path):
    """A rank goes on only when the cell has shown what it printed."""
    kernel.run(f"directory = {str(tmp_path)!r}")
    kernel.run(r"""
def shown(name):
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{directory}/{name}"):
        assert time.monotonic() < deadline, f"{name} was not shown"
        time.sleep(0.01)

def work(number):
    rank = int(os.environ["RING_KERAS_RANK"])
    if rank == 0:
        print("a line", flush=True)
        shown("line")
        for percent in (10, 20):
            print(f"\r{percent}% of it", end="", flush=True)
            shown(str(percent))
        print("\rdone", flush=True)
    return number + rank
""")

    def look(text: str) -> None:
        for name, words in (
            ("line", "a line\n"),
            ("10", "10% of it"),
            ("20", "20% of it"),
        ):
            if words in text:
                (tmp_path / name).touch()

    reply, text = kernel.run("print(ring.run(work, [5], np=2))", look)

    assert reply["status"] == "ok", reply
    assert text.endswith("done\n[5, 6]\n")
    assert "\x1b[K" not in text, "notebooks show that as it is"


@pytest.mark.slow
def test_interrupting_the_kernel_stops_the_ranks(kernel):
    kernel.run("""
def work():
    print("pid", os.getpid(), flush=True)
    time.sleep(1000)
""")
    pids: list[int] = []

    def look(text: str) -> None:
        found = re.findall(r"pid (\d+)\n", text)
        if len(found) == 2 and not pids:
            pids.extend(map(int, found))
            kernel.interrupt()

    reply, _ = kernel.run("ring.run(work, np=2)", look)

    assert reply["ename"] == "KeyboardInterrupt"
    wait_until_dead(pids)
    assert kernel.run("print(ring.run(lambda: 3, np=1))")[1] == "[3]\n"


def test_an_error_quotes_the_line_of_the_cell(kernel):
    reply, _ = kernel.run("""
def work():
    rank = int(os.environ["RING_KERAS_RANK"])
    raise ValueError(f"no data on rank {rank}")

ring.run(work, np=1)
""")

    assert reply["ename"] == "RankFailedError"
    assert re.match(
        r"rank 0 \(.*\) raised ValueError: no data on rank 0\n", reply["evalue"]
    )
    assert 'raise ValueError(f"no data on rank {rank}")' in reply["evalue"]


@pytest.mark.slow
def test_the_document_s_code_runs(kernel):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)

    assert len(blocks) == 2
    for block in blocks:
        reply, _ = kernel.run(block)
        assert reply["status"] == "ok", reply


@pytest.mark.slow
def test_the_example_runs():
    notebook = nbformat.read(EXAMPLE, as_version=4)

    # It raises if a cell does.
    nbclient.NotebookClient(
        notebook, timeout=_TIMEOUT_S, kernel_name="python3"
    ).execute()

    text = "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    )
    assert float(re.search(r"test accuracy ([\d.]+)%", text)[1]) > 80
    assert re.search(r"rank 1 \(.*\) raised ValueError: this rank has no data", text)
    assert "[1] Epoch" not in re.sub(r"\x1b\[\d*m", "", text), "the second bar"
