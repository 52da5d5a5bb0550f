"""What the environment tells ring_keras: the `RING_KERAS_*` variables.

This is the only place that reads the environment. It imports no TensorFlow, so
that the launcher can use it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import stat
import string
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Config",
    "ConfigError",
    "Variable",
    "cache_directory",
    "inherited_environment",
    "read_token",
    "variables",
]

PREFIX = "RING_KERAS_"
TOKEN_NBYTES = 32

# Which of the fields below go to the engine as its `tuning`.
TUNING_SETTINGS = (
    "shared_flat_max_bytes",
    "direct_max_bytes",
    "recursive_doubling_max_bytes",
    "parts_max_bytes",
)


class ConfigError(ValueError):
    """An environment variable, or the token file, is not what it must be."""


@dataclass(frozen=True)
class Variable:
    """One variable of the environment, as its documentation lists it.

    Attributes:
        name: Its whole name.
        takes: What it takes, in words.
        default: Its default, in words.
        help: What it does.
        set_by_launcher: Whether a launcher sets it, rather than a user.
    """

    name: str
    takes: str
    default: str
    help: str
    set_by_launcher: bool


@dataclass(frozen=True)
class _Reader:
    """How to read one kind of value; `parse` raises ValueError on a bad one."""

    takes: str
    parse: Callable[[str], Any]


def _integer(at_least: int, at_most: int | None = None) -> _Reader:
    takes = f"an integer of at least {at_least}"
    if at_most is not None:
        takes = f"an integer from {at_least} to {at_most}"

    def parse(text: str) -> int:
        value = int(text)
        if value < at_least or (at_most is not None and value > at_most):
            raise ValueError(text)
        return value

    return _Reader(takes, parse)


def _parse_seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value


def _choice(*choices: str) -> _Reader:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return _Reader("one of " + ", ".join(choices), parse)


def _parse_address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and 0 < int(port) < 65536):
        raise ValueError(text)
    return text


def _parse_device(text: str) -> str:
    if text not in ("auto", "cpu") and not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return text


def _parse_switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


_SWITCH = _Reader("0 or 1", _parse_switch)
_DEVICE = _Reader("auto, cpu, or the number of a GPU from 0", _parse_device)
_SECONDS = _Reader("a number of seconds above 0", _parse_seconds)
_TEXT = _Reader("text", str)
_PATH = _Reader("the path of a file", str)
_ADDRESS = _Reader("host:port", _parse_address)


def _variable(default: Any, reader: _Reader, help: str, launcher: bool = False) -> Any:
    return dataclasses.field(
        default=default,
        metadata={"reader": reader, "help": help, "launcher": launcher},
    )


@dataclass(frozen=True)
class Config:
    """One process's settings, from the environment.

    The field `init_timeout_s` is the variable `RING_KERAS_INIT_TIMEOUT_S`, and
    so on. Sizes are in bytes, times in seconds.
    """

    rank: int = _variable(0, _integer(0), "This process's rank.", launcher=True)
    size: int = _variable(
        1,
        _integer(1),
        "How many ranks the job has. Unset: this script runs alone, as one rank.",
        launcher=True,
    )
    store_address: str | None = _variable(
        None, _ADDRESS, "Where the job's store listens.", launcher=True
    )
    token_file: str | None = _variable(
        None,
        _PATH,
        "File with the job's secret: 64 hexadecimal digits, readable by its "
        "owner alone.",
        launcher=True,
    )
    generation: int = _variable(
        0, _integer(0, 2**64 - 1), "Number of the job's membership.", launcher=True
    )
    host_name: str | None = _variable(
        None,
        _TEXT,
        "Name of this host. Ranks with the same name share memory. Default: the "
        "machine's own name.",
        launcher=True,
    )
    transport: str = _variable(
        "auto",
        _choice("auto", "tcp"),
        "How ranks on one host reach each other: auto takes shared memory, tcp "
        "forces TCP.",
    )
    tcp_streams: int = _variable(
        2, _integer(1, 16), "TCP connections between two ranks."
    )
    bind_address: str | None = _variable(
        None,
        _TEXT,
        "Address to listen on for other ranks. Default: the one that reaches the "
        "store.",
    )
    device: str = _variable(
        "auto",
        _DEVICE,
        "What this rank trains on. auto: with several ranks, the GPU of its number "
        "among those of its host, if TensorFlow lists GPUs there.",
    )
    cuda_library_path: str | None = _variable(
        None,
        _Reader("directories, separated by colons", str),
        "Where to look for NVIDIA's libraries (CUDA runtime, NCCL, NVRTC) first. "
        "Default: the copies that TensorFlow has loaded, its pip packages, and "
        "where the system looks.",
    )
    init_timeout_s: float = _variable(
        120.0, _SECONDS, "How long init() waits for all ranks to join."
    )
    collective_timeout_s: float = _variable(
        600.0, _SECONDS, "How long a collective waits for the other ranks."
    )
    stall_timeout_s: float = _variable(
        60.0,
        _SECONDS,
        "After how long a waiting collective logs which ranks have not joined it.",
    )
    shared_flat_max_bytes: int | None = _variable(
        None,
        _integer(0),
        "Ranks of one host, if more than two, each reduce all of an allreduce up to "
        "this many bytes, and a part each of a larger one. The same on every rank.",
    )
    direct_max_bytes: int | None = _variable(
        None,
        _integer(0),
        "Ranks on several hosts send an allreduce up to this many bytes each to all. "
        "The same on every rank.",
    )
    recursive_doubling_max_bytes: int | None = _variable(
        None,
        _integer(0),
        "Above RING_KERAS_DIRECT_MAX_BYTES and up to this many bytes they reduce it "
        "by recursive doubling. The same on every rank.",
    )
    parts_max_bytes: int | None = _variable(
        None,
        _integer(0),
        "Above both and up to this many bytes each of them reduces a part; above, "
        "they form a ring. The same on every rank.",
    )
    bucket_size_bytes: int | None = _variable(
        None,
        _integer(1),
        "Gradients are reduced in buckets of about this many bytes. Default: 16 MiB, "
        "32 MiB on GPUs.",
    )
    autotune: bool = _variable(
        False,
        _SWITCH,
        "1: init() measures, for a few seconds, which of the sizes above are best "
        "for this job, unless an earlier job on the same hosts did. Those that are "
        "set stay. The same on every rank.",
    )
    log_level: str = _variable(
        "info",
        _choice("debug", "info", "warning", "error", "off"),
        "The least severe messages that the engine logs.",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """Reads and checks every variable.

        Args:
            environment: Where to read; this process's environment by default.

        Raises:
            ConfigError: If a value is not one that its variable takes, or if
                what a launcher sets is there in part only.
        """
        if environment is None:
            environment = os.environ
        _warn_of_unknown(environment)
        values = {}
        for field in dataclasses.fields(cls):
            # Empty means unset: a shell cannot easily drop a variable.
            text = environment.get(_name(field), "").strip()
            if text:
                values[field.name] = _parse(field, text)
        config = cls(**values)
        config._check_job(given=set(values))
        return config

    def init_options(self) -> dict[str, Any]:
        """Keyword arguments for `_native.init`; reads the token file.

        Raises:
            ConfigError: If the token file is missing, open to others, or holds
                no token.
        """
        options: dict[str, Any] = {
            "rank": self.rank,
            "size": self.size,
            "generation": self.generation,
            "host_name": self.host_name or "",
            "bind_address": self.bind_address or "",
            "transport": self.transport,
            "tcp_streams": self.tcp_streams,
            "tuning": self.tuning(),
            "autotune": self.autotune,
            "cuda_library_path": self.cuda_library_path or "",
            "init_timeout_s": self.init_timeout_s,
            "collective_timeout_s": self.collective_timeout_s,
            "stall_warning_s": self.stall_timeout_s,
            "log_level": self.log_level,
        }
        # One rank may run in a job too, and then its store may want to see it.
        if self.store_address is not None and self.token_file is not None:
            host, _, port = self.store_address.rpartition(":")
            options["store_host"] = host.removeprefix("[").removesuffix("]")
            options["store_port"] = int(port)
            options["token"] = read_token(self.token_file)
        return options

    def tuning(self) -> dict[str, int]:
        """The thresholds that are set; the engine has defaults for the others."""
        thresholds = {name: getattr(self, name) for name in TUNING_SETTINGS}
        return {name: value for name, value in thresholds.items() if value is not None}

    def _check_job(self, given: set[str]) -> None:
        job = ("rank", "size", "store_address", "token_file")
        present = [name for name in job if name in given]
        if present == ["size"] and self.size == 1:
            return
        if present and len(present) < len(job):
            missing = [name for name in job if name not in given]
            raise ConfigError(
                f"{_names(present)} set, but {_names(missing)} not. A launcher sets "
                "all of them: run the script under ringrun, or unset all of them "
                "to run it alone."
            )
        if self.rank >= self.size:
            raise ConfigError(
                f"{PREFIX}RANK must be less than {PREFIX}SIZE. "
                f"Received: {PREFIX}RANK={self.rank}, {PREFIX}SIZE={self.size}"
            )


def variables() -> list[Variable]:
    """Every variable that ring_keras reads, in the order of `Config`."""
    return [
        Variable(
            name=_name(field),
            takes=field.metadata["reader"].takes,
            default=_in_words(field.default),
            help=field.metadata["help"],
            set_by_launcher=field.metadata["launcher"],
        )
        for field in dataclasses.fields(Config)
    ]


def cache_directory() -> Path | None:
    """Where ring_keras keeps what it can find out again; None if there is no home.

    The directory need not exist.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification wants relative paths to be ignored.
    if Path(base).is_absolute():
        return Path(base) / "ring_keras"
    try:
        return Path.home() / ".cache" / "ring_keras"
    except RuntimeError:
        return None


def inherited_environment() -> dict[str, str]:
    """A copy of this process's environment, for processes it starts."""
    return dict(os.environ)


def read_token(path: str | Path) -> bytes:
    """Reads a job's secret.

    Raises:
        ConfigError: If the file cannot be read, is open to anyone but its
            owner, or holds something else.
    """
    variable = f"{PREFIX}TOKEN_FILE={path}"
    try:
        # O_NONBLOCK: a named pipe must not make us wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(2 * TOKEN_NBYTES + 2)
    except OSError as error:
        raise ConfigError(f"{variable}: cannot read it: {error.strerror}.") from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or mode & 0o077:
        raise ConfigError(
            f"{variable}: must be a regular file that only its owner can read, mode "
            f"0600. Received: mode {mode:04o}. Others may know this secret: start "
            "the job anew with a new one."
        )
    text = content.decode("ascii", errors="replace").strip()
    if len(text) != 2 * TOKEN_NBYTES or not set(text) <= set(string.hexdigits):
        # The content stays out of the message: it may be the secret, cut short.
        raise ConfigError(
            f"{variable}: must hold {2 * TOKEN_NBYTES} hexadecimal digits. "
            f"Received: {len(content)} bytes of something else."
        )
    return bytes.fromhex(text)


def _in_words(default: Any) -> str:
    if default is None:
        return "unset"
    return str(int(default)) if isinstance(default, bool) else str(default)


def _name(field: dataclasses.Field[Any]) -> str:
    return PREFIX + field.name.upper()


def _names(fields: Sequence[str]) -> str:
    names = [PREFIX + field.upper() for field in fields]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _parse(field: dataclasses.Field[Any], text: str) -> Any:
    reader = typing.cast(_Reader, field.metadata["reader"])
    try:
        return reader.parse(text)
    except ValueError:
        raise ConfigError(
            f"{_name(field)} must be {reader.takes}. Received: {_name(field)}={text!r}"
        ) from None


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    known = [variable.name for variable in variables()]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            warnings.warn(
                f"ring_keras reads no variable {name}; it has no effect.{hint}",
                stacklevel=3,
            )
