"""Functions whose ranks come and go on an engine, and what becomes of these."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.processes import is_alive, wait_until

MARK = "RING_TEST_MARK"


class Job:
    """What a function notes, and which processes it has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = secrets.token_hex(8)
        self.running: Future[Any] | None = None

    @property
    def env(self) -> dict[str, str]:
        return {MARK: self.mark}

    def notes(self, prefix: str) -> dict[str, str]:
        """By pid."""
        paths = self.directory.glob(f"{prefix}.*")
        return {path.suffix[1:]: path.read_text() for path in paths}

    def processes(self) -> list[int]:
        """Of ranks and their agents, wherever."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environment.split(b"\0"):
                found.append(int(entry.name))
        return [pid for pid in found if is_alive(pid)]


@contextlib.contextmanager
def job_in(directory: Path) -> Iterator[Job]:
    """A job of which nothing may be left."""
    job = Job(directory)
    before = _left_behind()
    yield job
    wait_until(lambda: not job.processes(), "no process is left", 60)
    wait_until(lambda: _left_behind() <= before, "no file is left", 60)


def _left_behind() -> set[Path]:
    """Directories of jobs' files, of whatever job."""
    there = Path(tempfile.gettempdir())
    return {*there.glob("ring_keras-*"), *there.glob("ringrun-*")}


def note(directory: Path, prefix: str, text: object) -> None:
    unfinished = directory / f"unfinished.{os.getpid()}"
    unfinished.write_text(str(text))
    unfinished.rename(directory / f"{prefix}.{os.getpid()}")


def train(directory: Path, size: int) -> tuple[int, int, float, int, list[int]]:
    """Steps until there is a file "stop", and the job has its size again."""
    import tensorflow as tf

    import ring_keras as ring

    ring.init()
    total = tf.Variable(0.0)
    state = ring.elastic.TensorFlowState([total], step=0, sizes=[], stop=0.0)

    @ring.elastic.run
    def steps(state: Any) -> None:
        while state.stop == 0:
            if state.sizes[-1:] != [ring.size()]:
                state.sizes = [*state.sizes, ring.size()]
            total.assign_add(ring.allreduce(tf.constant(1.0), name="one"))
            stops = (directory / "stop").exists() and ring.size() == size
            answers = ring.allreduce(tf.constant(float(stops)), name="stop")
            state.stop = float(answers)
            state.step += 1
            state.commit()
            note(directory, "sizes", state.sizes)
            time.sleep(0.01)

    steps(state)
    return ring.rank(), os.getpid(), float(total), state.step, state.sizes


def run_while(
    run_elastic: Callable[..., Any],
    job: Job,
    disturb: Callable[[], None],
    function: Callable[[Path, int], Any] = train,
    **options: Any,
) -> list[Any]:
    """The results of a job, to which something is done while it runs."""
    size = options["max_workers"]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            run_elastic,
            function,
            [job.directory, size],
            env=job.env,
            cooldown_range=(0.1, 1.0),
            **options,
        )
        job.running = running
        try:
            await_sizes(job, size, f"[{size}]")
            disturb()
        finally:
            (job.directory / "stop").touch()
        return running.result(timeout=180)


def await_sizes(job: Job, count: int, sizes: str) -> None:
    """Until so many processes have seen these."""

    def has_come() -> bool:
        if job.running is not None and job.running.done():
            job.running.result()  # It failed, or has ended too early.
        return list(job.notes("sizes").values()).count(sizes) >= count

    wait_until(has_come, f"{count} processes have seen {sizes}", 300)


def require_one_was_replaced(
    results: list[Any], before: set[int], killed: set[int]
) -> None:
    """Two ranks again, which agree, and of which the one that was not killed stayed."""
    assert [rank for rank, *_ in results] == [0, 1]
    assert all(total == step for _, _, total, step, _ in results)
    assert [sizes for *_, sizes in results] == [[2, 1, 2]] * 2
    assert {pid for _, pid, *_ in results} & before == before - killed


def process_above(pid: int, name: bytes) -> int:
    """The nearest one whose command line has that in it."""
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(status.partition("PPid:")[2].split()[0])
        if name in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
