"""Ranks on several hosts, which are network namespaces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from support.network import Hosts
from support.rank_processes import start_fork_server
from support.run_ranks import run_ranks


def run_on(
    hosts: Hosts,
    worker: Callable[..., Any],
    host_of: list[int],
    more_env: Mapping[str, str] | None = None,
    forks: bool = False,
    **options: Any,
) -> list[Any]:
    """Runs `worker` on a rank per entry of `host_of`, on that host.

    Where it needs TensorFlow, `forks` spares each rank the import; it sees the files
    of this host then, of which /sys is one.
    """
    if forks:
        start_fork_server()  # Here, not on the first host.
    else:
        options["command_prefix"] = [hosts.command(host) for host in host_of]
    # The job's store listens on the first host, like ringrun's.
    job = functools.partial(
        run_ranks,
        worker,
        len(host_of),
        # The machine's name is the same in all, which would mean one host.
        env=[
            {
                "RING_KERAS_HOST_NAME": f"host{host}",
                "TESTS_NAMESPACE": hosts.names[host] if forks else "",
                **(more_env or {}),
            }
            for host in host_of
        ],
        bind_address=hosts.addresses[0],
        **options,
    )
    return hosts.inside(0, job)
