"""What users and schedulers tell the launcher, right and wrong."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from support.properties import QUICK_AND_DEEP, for_any

from ring_keras.config import ConfigError, expand_counts, expand_nodes, scheduled_rank
from ring_keras.launch.allocations import allocation
from ring_keras.launch.frames import FrameReader, Message, Output, ProtocolError, encode
from ring_keras.launch.hosts import Host, HostsError, merge, parse_hosts, read_hostfile
from ring_keras.schedulers.store_card import StoreCard

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,12}", fullmatch=True)
ADDRESSES = st.ip_addresses(v=6).map(str).filter(lambda text: text[0] != ":")
HOSTS = st.lists(
    st.builds(Host, NAMES | ADDRESSES, st.integers(1, 99)), min_size=1, max_size=6
)
# What lists of hosts are made of, in any order.
WORDS = (
    st.sampled_from(
        [
            *["a", "n", "[", "]", ":", ",", "-", "(x", ")", " ", "\n", "slots=", "#"],
            *["0", "01", "9", "[1-3]", "-oProxyCommand=x", "²", "٣", "\x00", "\u2028"],
            "9" * 5000,
        ]
    )
    | st.integers(0, 10**7).map(str)
    | NAMES
    | st.text(max_size=4)
)
TEXTS = st.lists(WORDS, max_size=10).map("".join)


def check_hosts(hosts: Any) -> None:
    for host in hosts:
        assert host.slots >= 1
        # Neither an option of ssh nor two words of a command line.
        assert host.name and not host.name.startswith("-")
        assert host.name.isprintable() and " " not in host.name


def with_file(content: bytes, use: Callable[[Path], Any]) -> Any:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        return use(Path(file.name))


def entry(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else host.name
    return f"{name}:{host.slots}"


@QUICK_AND_DEEP
def test_hosts_survive_an_option_and_a_file(examples: int) -> None:
    def check(hosts: list[Host]) -> None:
        entries = list(map(entry, hosts))
        assert parse_hosts(",".join(entries)) == merge(hosts)
        lines = [*entries[:1], *(f"{h.name} slots={h.slots}" for h in hosts[1:])]
        content = "\n".join(lines).encode()
        assert with_file(content, read_hostfile) == merge(hosts)

    for_any(HOSTS, check, examples)


@QUICK_AND_DEEP
def test_any_text_is_hosts_or_the_documented_error(examples: int) -> None:
    def check(text: str) -> None:
        for read in (
            lambda: parse_hosts(text),
            lambda: with_file(text.encode("utf-8", "surrogatepass"), read_hostfile),
        ):
            with contextlib.suppress(HostsError):
                check_hosts(read())

    for_any(TEXTS, check, examples)


@QUICK_AND_DEEP
def test_slurms_short_forms_are_expanded(examples: int) -> None:
    def check(parts: list[tuple[str, int, int, int]]) -> None:
        counts, nodes = [], []
        expected_counts, expected_nodes = [], []
        for name, first, repeats, width in parts:
            counts.append(f"{first}(x{repeats})")
            expected_counts += [first] * repeats
            last = first + repeats - 1
            nodes.append(f"{name}[{first:0{width}d}-{last:0{width}d}]")
            expected_nodes += [
                f"{name}{number:0{width}d}" for number in range(first, last + 1)
            ]
        assert expand_counts("X", ",".join(counts)) == expected_counts
        assert expand_nodes("X", ",".join(nodes)) == expected_nodes

    part = st.tuples(NAMES, st.integers(0, 999), st.integers(1, 9), st.integers(1, 5))
    for_any(st.lists(part, min_size=1, max_size=5), check, examples)


@QUICK_AND_DEEP
def test_any_text_is_a_short_form_or_the_documented_error(examples: int) -> None:
    def check(text: str) -> None:
        for expand in (expand_counts, expand_nodes):
            with contextlib.suppress(ConfigError):
                assert len(expand("X", text)) <= 1 << 20

    brackets = st.lists(WORDS, max_size=3).map("".join).map(lambda text: f"n[{text}]")
    for_any(TEXTS | st.lists(brackets).map(",".join), check, examples)


def test_short_forms_are_bounded() -> None:
    with pytest.raises(ConfigError, match="names of nodes"):
        expand_nodes("X", ",".join(["n[1-9999]"] * 200))
    with pytest.raises(ConfigError, match="must be numbers"):
        expand_counts("X", "9" * 5000)
    assert expand_nodes("X", "n" + "[1]" * 5000) == ["n" + "1" * 5000]


@pytest.mark.parametrize(
    ("source", "is_file"),
    [
        ("SLURM_JOB_NODELIST", False),
        ("LSB_MCPU_HOSTS", False),
        ("LSB_DJOB_HOSTFILE", True),
        ("PBS_NODEFILE", True),
        ("PE_HOSTFILE", True),
    ],
)
@QUICK_AND_DEEP
def test_any_allocation_is_hosts_or_the_documented_error(
    source: str, is_file: bool, examples: int
) -> None:
    def read(environment: dict[str, str]) -> None:
        try:
            found = allocation(environment)
        except (ConfigError, HostsError):
            return
        if found is not None:
            check_hosts(found.hosts)
            found.describe()

    def check(texts: tuple[str, str, str]) -> None:
        environment = {"SLURM_TASKS_PER_NODE": texts[1]}
        environment["SLURM_JOB_CPUS_PER_NODE"] = texts[2]
        if is_file:
            content = texts[0].encode("utf-8", "surrogatepass")
            with_file(content, lambda path: read({source: str(path)}))
        else:
            read({source: texts[0], **environment})

    rows = st.lists(WORDS, max_size=10).map(" ".join)
    for_any(st.tuples(TEXTS | rows, TEXTS, TEXTS), check, examples // 3)


@pytest.mark.parametrize("slots", ["0", "-1", "x", "9" * 5000, "٣"])
def test_slots_that_are_none_are_refused(slots: str) -> None:
    for read in (
        lambda: parse_hosts(f"a:{slots}"),
        lambda: with_file(f"a slots={slots}".encode(), read_hostfile),
        lambda: allocation({"LSB_MCPU_HOSTS": f"a {slots}"}),
    ):
        with pytest.raises(HostsError, match="slots must be an integer"):
            read()


def test_what_a_scheduler_names_is_no_option_of_ssh() -> None:
    for environment in (
        {"LSB_MCPU_HOSTS": "-oProxyCommand=x 4"},
        {"SLURM_JOB_NODELIST": "-oProxyCommand=x"},
    ):
        with pytest.raises(HostsError, match="expected a host"):
            allocation(environment)


@QUICK_AND_DEEP
def test_any_scheduler_says_a_rank_or_the_documented_error(examples: int) -> None:
    names = [
        "TORCHELASTIC_RUN_ID",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "PMI_FD",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID",
        "MASTER_ADDR",
        "MASTER_PORT",
    ]

    def check(environment: dict[str, str]) -> None:
        try:
            found = scheduled_rank(environment)
        except ConfigError:
            return
        assert found is None or 0 <= found.rank < found.size

    values = st.integers(0, 9).map(str) | TEXTS
    for_any(st.dictionaries(st.sampled_from(names), values), check, examples)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MESSAGES: st.SearchStrategy[Message] = st.builds(
    Output,
    st.integers(0, 2**32 - 1),
    st.sampled_from(["stdout", "stderr"]),
    st.binary(),
) | st.dictionaries(st.text(), JSON).map(lambda rest: {**rest, "type": "hello"})


@QUICK_AND_DEEP
def test_messages_of_agents_survive_in_any_pieces(examples: int) -> None:
    def check(case: tuple[list[Message], int]) -> None:
        messages, step = case
        stream = b"".join(map(encode, messages))
        reader = FrameReader(greeted=True)
        found: list[Message] = []
        for start in range(0, len(stream), step):
            found += reader.feed(stream[start : start + step])
        assert found == messages

    for_any(st.tuples(st.lists(MESSAGES), st.integers(1, 99)), check, examples)


@QUICK_AND_DEEP
def test_any_bytes_are_messages_or_the_documented_error(examples: int) -> None:
    def check(pieces: list[bytes]) -> None:
        reader = FrameReader(greeted=True)
        with contextlib.suppress(ProtocolError):
            for piece in pieces:
                for message in reader.feed(piece):
                    encode(message)

    framed = st.binary(max_size=40).map(
        lambda body: (len(body) + 1).to_bytes(4, "big") + b"\1" + body
    )
    deep = st.just(b"\0\1\0\1\1" + b"[" * 65536)
    pieces = MESSAGES.map(encode) | framed | deep | st.binary(max_size=12)
    for_any(st.lists(pieces, max_size=5), check, examples)


@QUICK_AND_DEEP
def test_any_text_is_a_stores_card_or_the_documented_error(examples: int) -> None:
    def check(fields: dict[str, Any]) -> None:
        try:
            card = StoreCard.from_text(json.dumps(fields))
        except ValueError:
            return
        assert StoreCard.from_text(card.to_text()) == card

    good = {
        "host": st.text(),
        "port": st.integers(1, 65535),
        "token": st.just("0f" * 32),
        "boot_id": st.text(),
        "pid_namespace": st.text(),
        "pid": st.integers(),
        "started_at": st.integers(),
    }
    damaged = st.fixed_dictionaries({name: good[name] | JSON for name in good})
    for_any(st.fixed_dictionaries(good) | damaged, check, examples)
