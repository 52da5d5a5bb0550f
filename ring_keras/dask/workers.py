"""Which workers a cluster has now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import distributed

__all__ = ["workers_of"]


def workers_of(client: distributed.Client) -> Mapping[str, Mapping[str, Any]]:
    """What the scheduler knows of each, by its address.

    Asked of the scheduler itself: what `client.scheduler_info()` returns may have been
    replaced meanwhile by what the client asks for each two seconds, which names none.

    Raises:
        OSError: If the scheduler does not answer.
    """
    told: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)
    workers: dict[str, dict[str, Any]] = told["workers"]
    return workers
