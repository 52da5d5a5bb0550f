"""Which rank each worker of an engine is."""

from __future__ import annotations

from collections.abc import Sequence

from ring_keras.launch.places import Place, places_of

__all__ = ["places_by_host"]


def places_by_host(hosts: Sequence[str]) -> list[Place]:
    """Numbers workers host after host, as ranks that share memory must be.

    Args:
        hosts: Of each worker, in the engine's order.

    Returns:
        The place of each, in the same order. The first worker is rank 0; those of a
        host keep their order, and so do the hosts.
    """
    workers: dict[str, list[int]] = {}
    for worker, host in enumerate(hosts):
        workers.setdefault(host, []).append(worker)
    places = places_of([len(those) for those in workers.values()])
    placed = {
        worker: place
        for those, of_host in zip(workers.values(), places, strict=True)
        for worker, place in zip(those, of_host, strict=True)
    }
    return [placed[worker] for worker in range(len(hosts))]
