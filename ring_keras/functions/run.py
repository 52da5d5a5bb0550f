"""`ring_keras.run`: a function as every rank of a new job."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ring_keras.engines import call_rank, pickling
from ring_keras.engines.call_files import CallFiles
from ring_keras.engines.outcomes import Outcome, RankFailedError, results_of
from ring_keras.functions.job_output import JobOutput
from ring_keras.launch import exec_rank
from ring_keras.launch.cli import make_parser
from ring_keras.launch.given_options import given_options
from ring_keras.launch.workers import how_ended

__all__ = ["run"]

_Result = TypeVar("_Result")

# What options of ringrun set that would make other ranks than `np` says.
_OTHER_RANKS = ("size", "min_size", "max_size", "nnodes", "host_discovery_script")


def run(
    fn: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int,
    options: Sequence[str] = (),
    python: str | None = None,
) -> list[_Result]:
    """Runs a function on every rank of a new job, from a script or a notebook.

    The function calls `init()`, as a script under `ringrun` does. Each rank is a new
    process. cloudpickle sends it the function, the arguments, and everything that the
    script or the notebook itself defines; modules are imported again. The ranks' output
    is shown at once, below the cell in a notebook. Ctrl-C, or the notebook's button,
    stops the ranks. The end of this process, however it ends, stops them, too.

    Examples:
        >>> def train(epochs):
        ...     ring.init()
        ...     model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        ...     mine = slice(ring.rank(), None, ring.size())
        ...     return model.fit(x[mine], y[mine], epochs=epochs, verbose=0).history
        >>> first, second = ring.run(train, [3], np=2)
        >>> first["loss"] == second["loss"]
        True

    Args:
        fn: The function that every rank calls.
        args: Its positional arguments, the same on every rank.
        kwargs: Its keyword arguments, the same on every rank.
        np: Number of ranks.
        options: More options of ringrun, such as `["--bind-to", "cores"]`. With `-H`,
            all hosts must share the directory for temporary files (`TMPDIR`), through
            which function and results travel.
        python: The ranks' Python; by default this one.

    Returns:
        The function's return values, by rank.

    Raises:
        RankFailedError: If a rank failed. It names the first one, with its traceback.
            Also if ringrun cannot start the job; its output says why.
        TypeError: If the function, or an object to which it refers, cannot be pickled.
        ValueError: If `np` is less than 1, or `options` set another number of ranks.
    """
    if np < 1:
        raise ValueError(f"run(np={np}): a job has at least 1 rank.")
    given = _given(options)
    for option in (given[name] for name in _OTHER_RANKS if name in given):
        raise ValueError(
            f"run(options=[... {option!r} ...]): np={np} says how many ranks there "
            "are. Start elastic jobs, and those of several nodes, with ringrun."
        )
    with tempfile.TemporaryDirectory(prefix="ring_keras-run-") as name:
        files, event_log = CallFiles(Path(name)), Path(name, "events.jsonl")
        files.write_call(_pickled(fn, args, kwargs or {}), "cloudpickle")
        command = [sys.executable, "-m", "ring_keras.launch", "-np", str(np)]
        command += ["--event-log", str(event_log), *options]
        command += [python or sys.executable, call_rank.__file__, name]
        code = _follow(command)
        return _results(files, event_log, np, code)


def _given(options: Sequence[str]) -> dict[str, str]:
    """Names of the options by what they set; none if ringrun cannot read them."""
    nobody = io.StringIO()
    try:
        with contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody):
            return given_options(make_parser(), options)
    except SystemExit:
        return {}  # It will say so itself.


def _pickled(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    try:
        return pickling.dumps(functools.partial(fn, *args, **kwargs))
    except Exception as error:
        raise TypeError(
            f"run() cannot send {fn!r} and its arguments to the ranks, which are "
            f"processes of their own: {error}. Make what cannot be pickled inside the "
            "function."
        ) from error


def _follow(command: Sequence[str]) -> int:
    """Runs ringrun, and shows what it prints; its exit code."""
    # It is killed with this thread, and its guard ends the job then.
    bound = [sys.executable, "-I", "-S", exec_rank.__file__, str(os.getpid()), ""]
    interrupted = False
    with (
        JobOutput() as output,
        subprocess.Popen(
            [*bound, *command],
            stdin=subprocess.DEVNULL,
            stdout=output.stdout,
            stderr=output.stderr,
            # Ctrl-C in a terminal, and a notebook's button, reach the whole group.
            start_new_session=True,
        ) as ringrun,
    ):
        while True:
            try:
                output.show()
                ringrun.wait()
                break
            except KeyboardInterrupt:
                interrupted = True
                ringrun.send_signal(signal.SIGINT)
            except BaseException:
                # It must not wait for a reader.
                output.close()
                ringrun.terminate()
                raise
    if interrupted:
        raise KeyboardInterrupt
    return ringrun.returncode


def _results(files: CallFiles, event_log: Path, size: int, code: int) -> list[Any]:
    by_rank = {one.number: one for one in files.outcomes()}
    outcomes = [by_rank.get(rank) for rank in range(size)]
    failed = [one for one in outcomes if one and one.failure]
    no_cause = all(one.follows for one in failed)
    if code != 0 and no_cause and (None in outcomes or not failed):
        # A process has died, or ended badly after its function.
        said = (
            _conclusion(event_log) or f"ringrun {how_ended(code)}; it has printed why"
        )
        raise RankFailedError(None, said)
    ended = "was stopped" if code else "ended its process before its function returned"
    missing = Outcome(failure=ended, follows=code != 0)
    return results_of([one or missing for one in outcomes])


def _conclusion(event_log: Path) -> str | None:
    """Why the job failed, in ringrun's words; None if it has not said so there."""
    if not event_log.exists():
        return None
    events = map(json.loads, event_log.read_text().splitlines())
    faults = [
        str(event["text"])
        for event in events
        if event["kind"] == "fault" and event["rank"] is None
    ]
    return faults[-1] if faults else None
