"""Makes the back end and the rendezvous known to torch, by the name `ring`."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

import torch.distributed
from torch.distributed import register_rendezvous_handler

from ring_keras.config import Config
from ring_keras.errors import RingKerasError
from ring_keras.job.gathering import name_of_first
from ring_keras.job.topology import is_initialized, local_size, rank, size
from ring_keras.lifecycle.membership import init
from ring_keras.network.addresses import own_addresses
from ring_keras.torch.process_groups import (
    default_group_told,
    new_backend,
    require_same_ranks,
)
from ring_keras.values.objects import broadcast_object
from ring_keras.values.refusals import refusals_told

__all__ = ["register"]

_NAME = "ring"
# The collective by which all hear of the store.
_STORE = "torch/store"


def register() -> None:
    """Once for each process: torch refuses a second time."""
    torch.distributed.Backend.register_backend(
        _NAME, new_backend, extended_api=True, devices=["cpu", "cuda"]
    )
    register_rendezvous_handler(_NAME, _rendezvous)


def _rendezvous(
    url: str, timeout: Any = torch.distributed.default_pg_timeout, **_options: Any
) -> Iterator[tuple[Any, int, int]]:
    """Yields a store that the first rank serves, this rank, and how many there are."""
    if not is_initialized():
        init()
    given = urllib.parse.parse_qs(urllib.parse.urlparse(url).query)
    store = address = None
    with refusals_told(name_of_first(_STORE)):
        require_same_ranks(
            int(given.get("rank", [rank()])[0]),
            int(given.get("world_size", [size()])[0]),
        )
        if rank() == 0:
            host = _own_address()
            store = torch.distributed.TCPStore(
                host, 0, size(), is_master=True, timeout=timeout, wait_for_workers=False
            )
            address = host, store.port
    host, port = broadcast_object(address, name=_STORE)
    if store is None:
        with default_group_told():
            store = torch.distributed.TCPStore(
                host, port, size(), is_master=False, timeout=timeout
            )
    yield store, rank(), size()


def _own_address() -> str:
    """By which the other ranks' hosts reach this one."""
    if local_size() == size():
        return "127.0.0.1"
    addresses = own_addresses(Config.from_environment().interfaces or ())
    if not addresses:
        raise RingKerasError(
            "[RK143] rank 0's host has no address by which other hosts reach it, so it "
            "cannot serve torch's store."
        )
    return addresses[0]
