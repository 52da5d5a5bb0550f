"""What a training job must know about the processes that prepare its data."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ring_keras.data.service.registry import RegistryClient

__all__ = ["TfDataServiceConfig"]

_LOOK_INTERVAL_S = 0.1


@dataclass(frozen=True)
class TfDataServiceConfig:
    """The address of a compute job's registry, and the layout of its servers.

    The compute job writes it to a file, and the training job reads it.

    Examples:
        With `ring data-service service.json` running on some ranks:

        >>> from ring_keras.data.service import TfDataServiceConfig
        >>> config = TfDataServiceConfig.read("service.json")
        >>> config.dispatchers, config.dispatcher_side
        (1, 'compute')

    Attributes:
        dispatchers: Number of dispatchers: one for all training ranks, or one
            for each.
        workers_per_dispatcher: Number of compute ranks that prepare data for each.
        dispatcher_side: Where dispatchers run: on "compute" ranks or on "training"
            ranks.
        addresses: Host and port of the registry, in a list by network interface.
        key: The secret that clients of the registry must know.
        timeout: Seconds to wait for dispatchers and workers.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: Literal["compute", "training"]
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: float = 60

    def __post_init__(self) -> None:
        if self.dispatcher_side not in ("compute", "training"):
            raise ValueError(
                "`dispatcher_side` must be 'compute' or 'training'. "
                f"Received: dispatcher_side={self.dispatcher_side!r}"
            )
        if self.dispatchers < 1 or self.workers_per_dispatcher < 1:
            raise ValueError(
                "There must be at least one dispatcher, with one worker. Received: "
                f"dispatchers={self.dispatchers}, "
                f"workers_per_dispatcher={self.workers_per_dispatcher}"
            )

    def compute_client(self) -> RegistryClient:
        """Talks to the registry; `shutdown()` ends the compute job."""
        flat = [
            (str(host), int(port))
            for pairs in self.addresses.values()
            for host, port in pairs
        ]
        return RegistryClient(flat, self.key)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the secret among them."""
        return {**asdict(self), "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> "TfDataServiceConfig":
        """The inverse of `to_dict`."""
        addresses = {
            interface: [(host, port) for host, port in pairs]
            for interface, pairs in config["addresses"].items()
        }
        key = bytes.fromhex(config["key"])
        return TfDataServiceConfig(**{**config, "addresses": addresses, "key": key})

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Writes a file that only its owner can read, whole or not at all."""
        unfinished = Path(f"{os.fspath(filename)}.{os.getpid()}")
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "w") as file:
            json.dump(self.to_dict(), file)
        unfinished.rename(filename)

    @staticmethod
    def read(
        filename: str | os.PathLike[str],
        wait_for_file_creation: bool = False,
        timeout: float = 600,
    ) -> "TfDataServiceConfig":
        """Reads what `write` has written.

        Args:
            filename: The file.
            wait_for_file_creation: Whether to wait for it if it is not there.
            timeout: How many seconds.

        Raises:
            FileNotFoundError: If it is not there (in time).
            PermissionError: If others than its owner can read it.
        """
        path = Path(filename)
        deadline = time.monotonic() + (timeout if wait_for_file_creation else 0)
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(_LOOK_INTERVAL_S)
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if mode & 0o077:
                raise PermissionError(
                    f"{path} holds a secret, so only its owner may read it, mode 0600. "
                    f"Received: mode {mode:04o}. Others may know this secret: start "
                    "the compute job anew."
                )
            return TfDataServiceConfig.from_dict(json.load(file))
