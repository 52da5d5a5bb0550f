"""All ranks of a job learn where its store is."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ring_keras import _native
from ring_keras.config import Config, ConfigError, ScheduledRank, scheduled_rank
from ring_keras.schedulers.addresses import own_address
from ring_keras.schedulers.card_file import CardFile, path_of_card
from ring_keras.schedulers.pmi import Pmi
from ring_keras.schedulers.store_card import StoreCard
from ring_keras.schedulers.store_start import start_store

__all__ = ["store_options"]

_POLL_S = 0.05
_PMI_KEY = "ring_keras"
# Before the reason why there is no card.
_FAILED = "!"
# A value may have 1024 bytes; a character may take 4, and each 2 digits.
_MAX_REASON = 120

# The store of this process's job, which is one job until the process ends, however
# often it leaves and joins: the store counts the generations.
_found: tuple[ScheduledRank, StoreCard] | None = None


def store_options(config: Config) -> dict[str, Any]:
    """What `_native.init` must know of a job whose ranks a scheduler has started.

    Begins MPI, if that is what carries between hosts and nobody has: of a process that
    mpirun has started it asks who the others are, which may be asked once.

    Returns:
        Keyword arguments that take the place of those of `config.init_options()`;
        empty if this process is alone, or if a launcher has said everything.

    Raises:
        ConfigError: If the scheduler's variables make no sense, or the ranks have
            no place to meet.
        CollectiveTimeoutError: If rank 0 has not come in time.
    """
    global _found
    if config.transport == "mpi":
        # One that is loaded, or that pip has installed, comes before the system's.
        folder = str(Path(sys.prefix) / "lib")
        _native.start_mpi(config.mpi_library or "", folder)
    if _found is None:
        own = scheduled_rank()
        if own is None or own.size == 1:
            return {}
        _found = own, _meet(config, own)
    own, card = _found
    return {
        "rank": own.rank,
        "size": own.size,
        "store_host": card.host,
        "store_port": card.port,
        "token": card.secret(),
    }


def _meet(config: Config, own: ScheduledRank) -> StoreCard:
    deadline = time.monotonic() + config.init_timeout_s
    if own.pmi_fd is not None:
        return _meet_by_pmi(config, own, own.pmi_fd, deadline)
    if not own.job:
        raise ConfigError(
            "[RK124] "
            f"{own.starter} started this process as one of {own.size}, but not in "
            "a way in which they could find each other. Start the script with "
            "ringrun, or set RING_KERAS_SIZE=1 to run each of them alone."
        )
    return _meet_by_file(config, own, deadline)


def _meet_by_pmi(
    config: Config, own: ScheduledRank, descriptor: int, deadline: float
) -> StoreCard:
    with Pmi(descriptor, own.starter, deadline) as pmi:
        if own.rank == 0:
            try:
                card = start_store(
                    config, own_address(config, own), own.size, None, deadline
                )
            except Exception as error:
                # The others wait: they fail for the same reason.
                _tell(pmi, f"{_FAILED}{error}"[:_MAX_REASON])
                raise
            _tell(pmi, card.to_text())
            return card
        pmi.barrier()
        told = bytes.fromhex(pmi.get(_PMI_KEY)).decode()
    if told.startswith(_FAILED):
        raise ConfigError(f"[RK124] rank 0 cannot start the job's store: {told[1:]}")
    return StoreCard.from_text(told)


def _tell(pmi: Pmi, text: str) -> None:
    # Spaces and equals signs are the protocol's.
    pmi.put(_PMI_KEY, text.encode().hex())
    pmi.barrier()


def _meet_by_file(config: Config, own: ScheduledRank, deadline: float) -> StoreCard:
    path = path_of_card(config, own)
    if own.rank == 0:
        address = own_address(config, own)
        return start_store(config, address, own.size, path, deadline)
    file = CardFile(path)
    while (card := file.read()) is None:
        if time.monotonic() > deadline:
            raise _too_late(config, own, path)
        time.sleep(_POLL_S)
    return card


def _too_late(config: Config, own: ScheduledRank, path: Path) -> Exception:
    # It brings TensorFlow.
    from ring_keras.errors import CollectiveTimeoutError

    shared = ""
    if not own.one_host:
        shared = " Do all hosts share it? RING_KERAS_RENDEZVOUS_DIR names another."
    return CollectiveTimeoutError(
        "[RK110] "
        f"rank {own.rank} waited {config.init_timeout_s:g} s for rank 0 of the "
        f"{own.size} that {own.starter} started, which should say in {path} where "
        f"the job's store is. Did it start, and does it call init()?{shared} A slow "
        "start needs a larger RING_KERAS_INIT_TIMEOUT_S."
    )
