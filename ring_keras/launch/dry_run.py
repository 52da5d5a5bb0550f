"""`ringrun --dry-run`: what would be run, and where."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ring_keras.launch.environment import job_variables
from ring_keras.launch.hosts import Host, fill
from ring_keras.launch.nodes import NodeOptions
from ring_keras.launch.places import GENERATION, Place, places_of
from ring_keras.launch.ssh import SshOptions, agent_command
from ring_keras.network.addresses import is_own

__all__ = ["planned_variables", "print_node_plan", "print_plan"]


def planned_variables(place: Place) -> dict[str, str]:
    """A rank's own, but for what is only known once the job runs."""
    return job_variables(
        place,
        store_address="127.0.0.1:1",
        token_file="TOKEN_FILE",
        generation=GENERATION,
    )


def print_plan(
    size: int,
    hosts: Sequence[Host] | None,
    ssh: SshOptions,
    command: Sequence[str],
    added: Mapping[str, str],
    chosen: Mapping[str, str],
) -> int:
    """Prints each rank's command and what is added to its environment.

    Args:
        size: Number of ranks.
        hosts: Where they run; None: on this host.
        ssh: How the agents of other hosts are started.
        command: The command of each rank.
        added: What ranks of this host get, if they are all here.
        chosen: What ranks get anywhere; their host's agent adds more.
    """
    if hosts is None:
        for place in places_of([size])[0]:
            _print_rank(place, "127.0.0.1:PORT", added, command)
        return 0
    hosts = fill(hosts, size)  # Others are for ranks that come later.
    places = places_of([host.slots for host in hosts])
    for host, own_places in zip(hosts, places, strict=True):
        own = is_own(host.name)
        print(
            f"{host.name}:", shlex.join(agent_command(None if own else host.name, ssh))
        )
        for place in own_places:
            name = host.name.rpartition("@")[2]
            variables = {"RING_KERAS_HOST_NAME": name, **chosen}
            _print_rank(place, "ADDRESS:PORT", variables, command)
    return 0


def print_node_plan(
    node: NodeOptions, command: Sequence[str], added: Mapping[str, str]
) -> int:
    """Prints what this node runs; the others' size decides about ranks' numbers."""
    where = f"node {node.rank} of {node.count}, which meet at {node.rendezvous}"
    print(f"{where}: {node.ranks} ranks of")
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items())]
    print(*words, shlex.join(command))
    return 0


def _print_rank(
    place: Place, address: str, variables: Mapping[str, str], command: Sequence[str]
) -> None:
    job = {**planned_variables(place), "RING_KERAS_STORE_ADDRESS": address}
    words = [
        f"{name}={shlex.quote(value)}"
        for name, value in [*sorted(variables.items()), *sorted(job.items())]
    ]
    print(f"[{place.rank}]", *words, shlex.join(command))
