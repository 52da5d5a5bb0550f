"""Settings of one process, and the variables that they are read from."""

from __future__ import annotations

import dataclasses
import difflib
import os
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ring_keras.config.errors import ConfigError
from ring_keras.config.openssl import share_openssl
from ring_keras.config.readers import (
    ADDRESS,
    DEVICE,
    NAMES,
    PATH,
    SECONDS,
    SWITCH,
    TEXT,
    TRANSPORT,
    Reader,
    choice,
    integer,
    split_address,
)
from ring_keras.config.token import read_token

__all__ = [
    "HEARTBEAT_S",
    "PREFIX",
    "TUNING_SETTINGS",
    "Config",
    "Variable",
    "variables",
]

PREFIX = "RING_KERAS_"
_MAX_BYTES = 1 << 62
# What pauses machines, such as a live migration, takes less than the first. An elastic
# job waits for who is silent, and goes on without it.
HEARTBEAT_S = 30.0
_ELASTIC_HEARTBEAT_S = 5.0

# Which of the fields below go to the engine as its `tuning`.
TUNING_SETTINGS = (
    "shared_flat_max_bytes",
    "direct_max_bytes",
    "recursive_doubling_max_bytes",
    "parts_max_bytes",
    "halving_max_bytes",
    "trees_max_bytes",
)


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


def _variable(default: Any, reader: Reader, help: str, launcher: bool = False) -> Any:
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

    rank: int = _variable(0, integer(0), "This process's rank.", launcher=True)
    size: int = _variable(
        1,
        integer(1),
        "Number of ranks of the job. Unset: this script runs alone, as one rank.",
        launcher=True,
    )
    store_address: str | None = _variable(
        None, ADDRESS, "Address of the job's store.", launcher=True
    )
    elastic_socket: str | None = _variable(
        None,
        Reader("the path of a socket", str),
        "In an elastic job, in place of the store's address: where ringrun tells each "
        "process its rank.",
        launcher=True,
    )
    token_file: str | None = _variable(
        None,
        PATH,
        "File with the job's secret: 64 hexadecimal digits, readable by its "
        "owner alone.",
        launcher=True,
    )
    generation: int = _variable(
        0, integer(0, 2**64 - 1), "Generation of the job's ranks.", launcher=True
    )
    host_name: str | None = _variable(
        None,
        TEXT,
        "Name of this host. Ranks of one machine with the same name share memory. "
        "Default: the machine's name; a container with another name counts as another "
        "host.",
        launcher=True,
    )
    rendezvous_dir: str | None = _variable(
        None,
        Reader("the path of a directory", str),
        "Where ranks that srun or mpirun has started find each other. They make a "
        "directory in it that only their user can read. Default: on one host /dev/shm, "
        "on several the user's home, which the hosts must share then.",
    )
    report_pipe: str | None = _variable(
        None,
        Reader("the path of a named pipe", str),
        "Where this rank reports its progress each second.",
        launcher=True,
    )
    terminal: str | None = _variable(
        None,
        Reader("the path of a terminal", str),
        "The terminal of ringrun, which a rank's debugger uses.",
        launcher=True,
    )
    transport: str = _variable(
        "auto",
        TRANSPORT,
        "How ranks exchange data. auto: by shared memory on one host, by TCP between "
        "hosts. tcp: by TCP everywhere. mpi, or the path of a library: as auto, with "
        "MPI or that library in place of TCP. Between hosts the same on every rank.",
    )
    mpi_library: str | None = _variable(
        None,
        PATH,
        "With RING_KERAS_TRANSPORT=mpi: MPI's library, such as "
        "/opt/mpich/lib/libmpi.so.12. Default: the one that the process has loaded, "
        "one of Python's own environment, or the system's.",
    )
    share_tensors: bool = _variable(
        True,
        SWITCH,
        "1: ranks of one host reduce large tensors on CPUs in TensorFlow's own memory. "
        "0: they copy them.",
    )
    tcp_streams: int = _variable(
        2, integer(1, 16), "TCP connections between two ranks."
    )
    bind_address: str | None = _variable(
        None,
        TEXT,
        "Address on which to listen for other ranks. It overrides "
        "RING_KERAS_INTERFACES. Default: one that all other hosts reach, on the "
        "fastest network.",
    )
    interfaces: tuple[str, ...] | None = _variable(
        None,
        NAMES,
        "Network interfaces to use between hosts, such as eth1. Each host uses those "
        "of the list that it has and that all others reach, and spreads the TCP "
        "connections of two ranks over them. Default: the fastest that all reach.",
    )
    encrypt: bool = _variable(
        False,
        SWITCH,
        "1: TCP connections between ranks, and to the store, are encrypted with TLS "
        "1.3. Needs OpenSSL 3. The same in every process of the job.",
    )
    device: str = _variable(
        "auto",
        DEVICE,
        "The device on which this rank trains. auto: with several ranks, the GPU whose "
        "number is the local rank, if TensorFlow lists GPUs. With another back end of "
        "Keras's: auto or cpu.",
    )
    cuda_library_path: str | None = _variable(
        None,
        Reader("directories, separated by colons", str),
        "Where to look for NVIDIA's libraries (CUDA runtime, NCCL, NVRTC) first. "
        "Default: the copies that TensorFlow has loaded, its pip packages, and "
        "where the system looks.",
    )
    timeline: str | None = _variable(
        None,
        PATH,
        "Every rank writes its collectives to a file beside this one, from init() on. "
        "`ring timeline` joins them into this file. The same on every rank.",
    )
    trace_dir: str | None = _variable(
        None,
        Reader("the path of a directory", str),
        "Where every rank writes its last collectives and the stacks of its threads "
        "when the job stalls or loses a rank, or when a rank gets SIGUSR2. `ring "
        "analyze` reads them.",
    )
    init_timeout_s: float = _variable(
        120.0, SECONDS, "How long init() waits for all ranks to join."
    )
    collective_timeout_s: float = _variable(
        600.0,
        SECONDS,
        "How long a collective waits for the other ranks, or for its data to move.",
    )
    stall_timeout_s: float = _variable(
        60.0,
        SECONDS,
        "How long a collective waits before it logs which ranks have not joined it.",
    )
    heartbeat_timeout_s: float | None = _variable(
        None,
        SECONDS,
        "How long a rank may be silent (stopped, swapped out, cut off) until it counts "
        "as lost. A host may be silent for 2 s longer, and an agent of ringrun for 5 s "
        "longer. Default: 30, and 5 in elastic jobs as long as any other is heard. The "
        "same in every process of the job.",
    )
    shared_flat_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "On one host with more than two ranks: each rank reduces the whole tensor of "
        "an allreduce up to this many bytes, and a part of a larger one. The same on "
        "every rank.",
    )
    direct_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "On several hosts: each rank sends the tensor of an allreduce up to this many "
        "bytes to all others. Default: 4 KiB, less on more than 256 ranks. The same on "
        "every rank.",
    )
    recursive_doubling_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "Above RING_KERAS_DIRECT_MAX_BYTES and up to this many bytes, an allreduce "
        "uses recursive doubling. Default: 16 KiB, 0 on more than 128 ranks, 1 MiB "
        "where two ranks on two hosts have an MPI. The same on every rank.",
    )
    parts_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "Above both and up to this many bytes, each rank reduces a part, which all "
        "others send to it. Default: 1 MiB on up to 8 ranks, 0 on more. The same on "
        "every rank.",
    )
    halving_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "Above all three and up to this many bytes, an allreduce uses recursive "
        "halving. Tensors of 16 bits are reduced by parts instead. Default: 128 KiB "
        "for each rank, 0 on up to 8 ranks. The same on every rank.",
    )
    trees_max_bytes: int | None = _variable(
        None,
        integer(0, _MAX_BYTES),
        "Above all four and up to this many bytes, an allreduce uses two binary trees; "
        "above this, a ring. Default: 0. On more than 8 ranks, also set "
        "RING_KERAS_HALVING_MAX_BYTES to 0, or halving comes first. The same on every "
        "rank.",
    )
    bucket_size_bytes: int | None = _variable(
        None,
        integer(1),
        "Gradients are reduced in buckets of about this many bytes. Default: 16 MiB, "
        "32 MiB on GPUs.",
    )
    autotune: bool = _variable(
        False,
        SWITCH,
        "1: init() measures, for a few seconds, which of the sizes above are best for "
        "this job, unless an earlier job on the same hosts has measured them. Sizes "
        "that are set do not change. The same on every rank.",
    )
    check_steps: int = _variable(
        0,
        integer(0),
        "Every this many steps, fit() with a callback of ring_keras compares the "
        "ranks' weights and optimizer state, and raises if they differ by more than "
        "rounding. 0: never. The same on every rank.",
    )
    check_reductions: bool = _variable(
        False, SWITCH, "1: detects bits that flip in gradients. The same on every rank."
    )
    log_level: str = _variable(
        "info",
        choice("debug", "info", "warning", "error", "off"),
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
            "encrypts": self.encrypt,
            "host_name": self.host_name or "",
            "bind_address": self.bind_address or "",
            "interfaces": list(self.interfaces or ()),
            "transport": self.transport,
            "shares_tensors": self.share_tensors,
            "tcp_streams": self.tcp_streams,
            "tuning": self.tuning(),
            "autotune": self.autotune,
            "cuda_library_path": self.cuda_library_path or "",
            "trace_dir": self.trace_dir or "",
            "init_timeout_s": self.init_timeout_s,
            "collective_timeout_s": self.collective_timeout_s,
            "stall_warning_s": self.stall_timeout_s,
            "heartbeat_timeout_s": self.heartbeat_s(self.elastic_socket is not None),
            "log_level": self.log_level,
        }
        if self.encrypt:
            share_openssl()
        # One rank may run in a job too, and then its store may want to see it.
        if self.token_file is not None:
            if self.store_address is not None:
                address = split_address(self.store_address)
                options["store_host"], options["store_port"] = address
            options["token"] = read_token(self.token_file)
        return options

    def heartbeat_s(self, elastic: bool = False) -> float:
        """How long a rank of such a job may be silent."""
        if self.heartbeat_timeout_s is not None:
            return self.heartbeat_timeout_s
        return _ELASTIC_HEARTBEAT_S if elastic else HEARTBEAT_S

    def tuning(self) -> dict[str, int]:
        """The thresholds that are set; the engine has defaults for the others."""
        thresholds = {name: getattr(self, name) for name in TUNING_SETTINGS}
        return {name: value for name, value in thresholds.items() if value is not None}

    def _check_job(self, given: set[str]) -> None:
        elastic = self.elastic_socket is not None
        where = "elastic_socket" if elastic else "store_address"
        job = ("rank", "size", where, "token_file")
        present = [name for name in job if name in given]
        self._check_transport(elastic)
        if present == ["size"] and self.size == 1:
            return
        if present and len(present) < len(job):
            missing = [name for name in job if name not in given]
            raise ConfigError(
                "[RK121] "
                f"{_names(present)} set, but {_names(missing)} not. A launcher sets "
                "all of them: run the script under ringrun, or unset all of them "
                "to run it alone."
            )
        # Processes that replace others of an elastic job have numbers of their own.
        if self.rank >= self.size and not elastic:
            raise ConfigError(
                "[RK120] "
                f"{PREFIX}RANK must be less than {PREFIX}SIZE. "
                f"Received: {PREFIX}RANK={self.rank}, {PREFIX}SIZE={self.size}"
            )

    def _check_transport(self, elastic: bool) -> None:
        if self.transport in ("auto", "tcp"):
            return
        if self.encrypt:
            raise ConfigError(
                "[RK153] "
                f"{PREFIX}ENCRYPT=1 encrypts TCP, and cannot protect what "
                f"{PREFIX}TRANSPORT={self.transport} sends between hosts. Unset one of "
                "the two."
            )
        if elastic:
            raise ConfigError(
                "[RK154] "
                "the ranks of an elastic job come and go, for which "
                f"{PREFIX}TRANSPORT must be auto or tcp. Received: "
                f"{PREFIX}TRANSPORT={self.transport}"
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
    reader = typing.cast(Reader, field.metadata["reader"])
    try:
        return reader.parse(text)
    except ValueError:
        raise ConfigError(
            "[RK120] "
            f"{_name(field)} must be {reader.takes}. Received: {_name(field)}={text!r}"
        ) from None


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    known = [variable.name for variable in variables()]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            warnings.warn(
                f"[RK125] ring_keras reads no variable {name}; it has no effect.{hint}",
                stacklevel=3,
            )
