"""`horovod.run`: a function on several ranks, from a script of one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ring_keras.functions.run import run as run_function
from ring_keras.horovod._absent import refuse_unless_default

__all__ = ["run"]

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

    As `ring_keras.run`, which says how function and results travel; other hosts must
    share the directory for temporary files (`TMPDIR`). `disable_cache` and `use_gloo`
    are taken and mean nothing.

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
        ring_keras.RankFailedError: If a rank failed; a RuntimeError.
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
    if hosts is None and hostfile is None:
        ssh_port = ssh_identity_file = None  # Nothing is reached by ssh.
    options = [
        word
        for option, value in (
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
    return run_function(func, args, kwargs, np=size, options=options, python=executable)
