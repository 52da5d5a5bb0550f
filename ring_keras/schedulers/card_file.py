"""A store's card in a file that only its user can read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from ring_keras.config import Config, ConfigError, ScheduledRank, cache_directory
from ring_keras.schedulers.store_card import MAX_NBYTES, StoreCard

__all__ = ["CardFile", "path_of_card"]

_MEMORY = Path("/dev/shm")


def path_of_card(config: Config, own: ScheduledRank) -> Path:
    """Where all ranks of a job look for its card, in a directory that is there.

    Raises:
        ConfigError: If there is no such directory, or if others could write to it.
    """
    directory = _base(config, own) / f"ring_keras-{os.geteuid()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(
            "[RK124] "
            f"{directory}: cannot make it: {error.strerror}. The ranks that "
            f"{own.starter} started meet there; set RING_KERAS_RENDEZVOUS_DIR to a "
            "directory in which you can write."
        ) from error
    _require_private(directory, status, stat.S_ISDIR(status.st_mode), "directory")
    identity = f"{own.starter}\n{own.job}\n{own.size}"
    return directory / hashlib.sha256(identity.encode()).hexdigest()[:32]


class CardFile:
    """The file at `path`, which appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._published: StoreCard | None = None

    def publish(self, card: StoreCard) -> None:
        """Lets the other ranks read the card, in place of any earlier job's.

        Raises:
            ConfigError: If another job, which goes on, has one there.
        """
        with contextlib.suppress(ConfigError):
            earlier = self.read()
            if earlier is not None and earlier.boot_id == card.boot_id:
                raise FileExistsError(
                    f"{self._path}: process {earlier.pid} serves a job of the same "
                    "name and has not got all its ranks"
                )
        unfinished = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(card.to_text())
            unfinished.rename(self._path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._published = card

    def read(self) -> StoreCard | None:
        """The card of a store that runs; None if there is none yet.

        Raises:
            ConfigError: If the file is another user's, open to others, or no card.
        """
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                "[RK124] "
                f"{self._path}: cannot read it: {error.strerror}. It should say where "
                "the job's store is."
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_NBYTES)
        _require_private(self._path, status, stat.S_ISREG(status.st_mode), "file")
        try:
            card = StoreCard.from_text(content.decode("ascii", errors="replace"))
        except ValueError:
            raise ConfigError(
                "[RK124] "
                f"{self._path}: should say where the job's store is. Received: "
                f"{len(content)} bytes of something else. Remove it."
            ) from None
        return card if card.is_served() else None

    def remove(self) -> None:
        """Takes away what `publish` made, and nothing of a later job's."""
        # The number of a file that is gone is soon another's; a secret is not.
        with contextlib.suppress(OSError, ConfigError):
            if self._published is not None and self.read() == self._published:
                self._path.unlink()


def _base(config: Config, own: ScheduledRank) -> Path:
    if config.rendezvous_dir is not None:
        return Path(config.rendezvous_dir)
    if not own.one_host:
        home = cache_directory()
        if home is None:
            raise ConfigError(
                "[RK124] "
                f"{own.starter} started {own.size} ranks on several hosts, and "
                "this user has no home in which they could find each other. Set "
                "RING_KERAS_RENDEZVOUS_DIR to a directory that the hosts share."
            )
        return home / "rendezvous"
    # Memory holds nothing from before the machine was started.
    if os.access(_MEMORY, os.W_OK | os.X_OK):
        return _MEMORY
    return Path(tempfile.gettempdir())


def _require_private(
    path: Path, status: os.stat_result, is_right: bool, kind: str
) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not is_right or status.st_uid != os.geteuid() or mode & 0o077:
        raise ConfigError(
            "[RK124] "
            f"{path}: must be a {kind} of this user's that no other can read. "
            f"Received: user {status.st_uid}, mode {mode:04o}. Somebody else made or "
            "changed it: remove it, or set RING_KERAS_RENDEZVOUS_DIR to another place."
        )
