"""`horovod.run`: a function on several ranks, from a script of one process."""

import contextlib
import importlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ring_keras.horovod._absent import refuse_unless_default

__all__ = ["CALL", "result_file", "run"]

CALL = "call.pickle"

_NO_ELASTIC = (
    "It returns every rank's result: start elastic jobs with ringrun --min-np."
)
_NO_MPI = "ringrun starts the ranks."


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Any = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls a function on every rank of a new job, on this machine or on several.

    Function and results travel in files that this user alone can read, in a
    directory for temporary files, which other hosts must share (`TMPDIR`). Ranks
    import the script that calls this anew, so it does so under `if __name__ ==
    "__main__"`, unless cloudpickle is installed. `disable_cache` and `use_gloo` are
    taken and mean nothing.

    Args:
        func: Calls `init()`, as a script would.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks.
        min_num_proc: None, as all that is for elastic jobs: ringrun starts those.
        max_num_proc: None.
        slots: None.
        reset_limit: None.
        cooldown_range: None.
        hosts: As `ringrun -H` takes them.
        hostfile: As `ringrun --hostfile`.
        host_discovery_script: None.
        start_timeout: Seconds for all ranks to join.
        ssh_port: As `ringrun -p`.
        ssh_identity_file: As `ringrun -i`.
        disable_cache: Ignored.
        output_filename: Also keeps what rank N prints, in `rank.N` below it.
        verbose: Whether to tell of each rank's start and end.
        use_gloo: Ignored.
        use_mpi: None or False.
        mpi_args: None.
        network_interface: As `ringrun --network-interface`.
        network_interfaces: The same, as a list or separated by commas.
        executable: The Python to run; this one by default.
        np: The older name of `num_proc`.
        min_np: None.
        max_np: None.

    Returns:
        What the function returned, by rank.

    Raises:
        RuntimeError: If a rank failed; ringrun has printed which and why.
    """
    for name, value, instead in (
        ("min_num_proc", min_num_proc, _NO_ELASTIC),
        ("max_num_proc", max_num_proc, _NO_ELASTIC),
        ("slots", slots, _NO_ELASTIC),
        ("reset_limit", reset_limit, _NO_ELASTIC),
        ("cooldown_range", cooldown_range, _NO_ELASTIC),
        ("host_discovery_script", host_discovery_script, _NO_ELASTIC),
        ("min_np", min_np, _NO_ELASTIC),
        ("max_np", max_np, _NO_ELASTIC),
        ("use_mpi", use_mpi or None, _NO_MPI),
        ("mpi_args", mpi_args, _NO_MPI),
    ):
        refuse_unless_default(name, value, None, instead)
    size = num_proc if np is None else np
    interfaces = network_interfaces or network_interface or None
    if interfaces is not None and not isinstance(interfaces, str):
        interfaces = ",".join(interfaces)
    options = [
        word
        for option, value in (
            ("-np", size),
            ("-H", hosts),
            ("--hostfile", hostfile),
            ("-p", ssh_port),
            ("-i", ssh_identity_file),
            ("--network-interface", interfaces),
            ("--start-timeout", start_timeout),
            ("--output-filename", output_filename),
        )
        if value is not None
        for word in (option, str(value))
    ]
    if verbose:
        options.append("--verbose")
    with tempfile.TemporaryDirectory(prefix="ring_keras-run-") as name:
        directory = Path(name)
        _write_call(directory / CALL, func, args, kwargs)
        command = [sys.executable, "-m", "ring_keras.launch", *options]
        command += [executable or sys.executable, "-m", "ring_keras.horovod._run_rank"]
        ended = subprocess.run([*command, name], check=False)
        if ended.returncode != 0:
            raise RuntimeError(
                f"horovod.run() of {func!r} on {size} ranks ended with code "
                f"{ended.returncode}; see what ringrun has printed."
            )
        return [
            pickle.loads(result_file(directory, rank).read_bytes())
            for rank in range(size)
        ]


def result_file(directory: Path, rank: int) -> Path:
    """Where a rank leaves what the function returned."""
    return directory / f"result.{rank}.pickle"


def _write_call(
    path: Path,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> None:
    pickler: Any = pickle
    main = getattr(sys.modules["__main__"], "__file__", None)
    with contextlib.suppress(ImportError):
        pickler = importlib.import_module("cloudpickle")
        main = None  # It writes down what the main script defines.
    call = pickler.dumps((func, tuple(args), dict(kwargs or {})))
    # The second is unpickled when the first is there.
    path.write_bytes(pickle.dumps((sys.path, main, call)))
