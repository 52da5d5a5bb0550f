"""Serves a job's store until its last rank has ended."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from ring_keras import _native
from ring_keras.config import share_openssl
from ring_keras.schedulers.card_file import CardFile
from ring_keras.schedulers.store_card import StoreCard

__all__ = ["serve"]

# How long ranks that come late are still told that rank 0 has ended.
_LINGER_S = 10.0
# A rank's end is looked for as often.
_POLL_S = 0.2
# Until all have joined: the card is to be gone before a second job of theirs begins.
_JOINING_POLL_S = 0.02


def serve(
    *,
    card_fd: int,
    parent_pid: int,
    bind_address: str,
    size: int,
    path: str | None,
    encrypts: bool,
    heartbeat_s: float,
) -> None:
    """Serves; returns when rank 0's process has ended and no other is in the job.

    Args:
        card_fd: Where the store's card is to be written, and closed.
        parent_pid: Rank 0's process, the parent of this one.
        bind_address: Where to listen.
        size: Ranks of the job.
        path: Where the card is to lie until all ranks have joined, if anywhere.
        encrypts: Whether what ranks say to it is encrypted.
        heartbeat_s: How long a rank may be silent.
    """
    token = secrets.token_bytes(32)
    if encrypts:
        share_openssl()
    store = _native.StoreServer(bind_address, 0, size, 0, token, encrypts, heartbeat_s)
    card = StoreCard.of_this_process(bind_address, store.port, token)
    file = None if path is None else CardFile(Path(path))
    try:
        if file is not None:
            _publish(file, card, parent_pid)
        with os.fdopen(card_fd, "w", encoding="ascii") as answer:
            answer.write(card.to_text())
        while not _all_have_joined(store, size):
            if os.getppid() != parent_pid:
                break
            time.sleep(_JOINING_POLL_S)
        else:
            # No other process may take this job for its own.
            if file is not None:
                file.remove()
        while os.getppid() == parent_pid:
            time.sleep(_POLL_S)
        _outlive_rank_0(store, size)
    finally:
        if file is not None:
            file.remove()
        store.close()


def _publish(file: CardFile, card: StoreCard, parent_pid: int) -> None:
    """Waits for an earlier job of these ranks, which has failed, to be over."""
    deadline = time.monotonic() + 2 * _LINGER_S
    while True:
        try:
            file.publish(card)
            return
        except FileExistsError:
            if time.monotonic() > deadline or os.getppid() != parent_pid:
                raise
        time.sleep(_POLL_S)


def _all_have_joined(store: _native.StoreServer, size: int) -> bool:
    return store.connected_ranks() + len(store.ended_ranks()) >= size


def _outlive_rank_0(store: _native.StoreServer, size: int) -> None:
    # Whoever reads what rank 0 prints is not to wait for this process.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    store.report_exit(0, "has ended")
    deadline = time.monotonic() + _LINGER_S
    while len(store.ended_ranks()) < size:
        if store.connected_ranks() == 0 and time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
