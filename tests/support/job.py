"""One job for a test: a store, a token file and each rank's environment."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

# One mapping for every rank, or one for each.
Environment = Mapping[str, str] | Sequence[Mapping[str, str]]

TESTS_DIR = Path(__file__).resolve().parent.parent

# Many ranks share few cores here, and none may touch a GPU.
LIGHT_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "KERAS_BACKEND": "tensorflow",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
}

# Tests stop ranks, and do not want to wait for as long as a job does.
_HEARTBEAT = "RING_KERAS_HEARTBEAT_TIMEOUT_S"
HEARTBEAT_S = "5"


class Job:
    """Hosts the store in this process, as ringrun does, for `size` ranks.

    Args:
        size: Number of ranks.
        env: Variables on top of the light defaults: a mapping, or one mapping
            per rank. A rank under another RING_KERAS_HOST_NAME counts as being
            on another host.
        bind_address: Where the store listens. Anything but loopback needs a
            network namespace around it.
    """

    def __init__(
        self,
        size: int,
        *,
        env: Environment | None = None,
        bind_address: str = "127.0.0.1",
    ) -> None:
        from ring_keras import _native

        if size < 1:
            raise ValueError(f"`size` must be at least 1. Received: size={size}")
        self.size = size
        self._env = _per_rank(env, size)
        self.directory = Path(tempfile.mkdtemp(prefix="ring-keras-test-"))
        token = secrets.token_bytes(32)
        self.token_file = self.directory / "token"
        descriptor = os.open(
            self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token.hex())
        # Like the first rank.
        encrypts = self._env[0].get("RING_KERAS_ENCRYPT") == "1"
        heartbeat_s = float(self._env[0].get(_HEARTBEAT, HEARTBEAT_S))
        self.store = _native.StoreServer(
            bind_address, 0, size, 0, token, encrypts, heartbeat_s
        )
        self.store_address = f"{bind_address}:{self.store.port}"

    def environment(self, rank: int) -> dict[str, str]:
        """Everything rank `rank`'s process gets."""
        common = light_environment()
        if common["CUDA_VISIBLE_DEVICES"]:
            # Ranks share the GPU, which NCCL allows those of different hosts.
            common["NCCL_HOSTID"] = f"rank{rank}"
        return (
            common
            | {
                _HEARTBEAT: HEARTBEAT_S,
                "RING_KERAS_GENERATION": "0",
                "RING_KERAS_RANK": str(rank),
                "RING_KERAS_SIZE": str(self.size),
                "RING_KERAS_STORE_ADDRESS": self.store_address,
                "RING_KERAS_TOKEN_FILE": str(self.token_file),
            }
            | ({"RING_KERAS_HOST_NAME": f"host{rank}"} if self._apart(rank) else {})
            | dict(self._env[rank])
        )

    def _apart(self, rank: int) -> bool:
        """Whether each rank is to count as being on a host of its own."""
        return "TESTS_APART" in self._env[rank]

    def close(self) -> None:
        """Ends the store and forgets the files."""
        self.store.close()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.directory)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def light_environment() -> dict[str, str]:
    """What every process of a test gets, before its job says more.

    TESTS_ENVIRONMENT, such as "RING_KERAS_SHARE_TENSORS=0", is for whole runs. Jobs of
    ringrun do not look at it.
    """
    chosen = dict(
        pair.split("=", 1) for pair in os.environ.get("TESTS_ENVIRONMENT", "").split()
    )
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RING_KERAS_")
    }
    path = os.pathsep.join(_python_path())
    return inherited | LIGHT_ENVIRONMENT | chosen | {"PYTHONPATH": path}


def _per_rank(env: Environment | None, size: int) -> list[Mapping[str, str]]:
    if env is None or isinstance(env, Mapping):
        return [env or {}] * size
    if len(env) != size:
        raise ValueError(
            f"`env` must be one mapping, or one for each of {size} ranks. "
            f"Received: {len(env)} mappings"
        )
    return list(env)


def _python_path() -> list[str]:
    """The package under test, and the tests, as this process sees them."""
    import ring_keras

    package_parent = Path(ring_keras.__file__).resolve().parent.parent
    paths = [str(package_parent), str(TESTS_DIR)]
    paths += [path for path in sys.path if path.startswith(str(TESTS_DIR))]
    paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return list(dict.fromkeys(path for path in paths if path))
