"""Hosts and slots, as schedulers write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring_keras.config import ConfigError
from ring_keras.launch.allocations import allocation
from ring_keras.launch.hosts import Host, HostsError


def hosts_of(environment: dict[str, str]) -> list[Host]:
    found = allocation(environment)
    assert found is not None
    return list(found.hosts)


def test_outside_of_any_job_there_is_none() -> None:
    assert allocation({"HOME": "/root", "PBS_NODEFILE": ""}) is None


def test_slurm() -> None:
    environment = {
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[08-10,7],m1",
        "SLURM_TASKS_PER_NODE": "2(x3),1(x2)",
    }
    found = allocation(environment)

    assert found is not None
    assert (found.scheduler, found.job) == ("Slurm", "17")
    assert found.hosts == [
        Host("n08", 2),
        Host("n09", 2),
        Host("n10", 2),
        Host("n7", 1),
        Host("m1", 1),
    ]


def test_slurm_with_counts_for_other_nodes() -> None:
    environment = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4"}
    with pytest.raises(HostsError, match=r"2 nodes \(SLURM_JOB_NODELIST.*tasks for 1"):
        hosts_of(environment)


def test_pbs(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a.example\nb.example\na.example\n")

    assert hosts_of({"PBS_NODEFILE": str(file)}) == [
        Host("a.example", 2),
        Host("b.example", 1),
    ]


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    for name in ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE"):
        with pytest.raises(HostsError, match="No such file"):
            hosts_of({name: str(tmp_path / "gone")})


def test_grid_engine(tmp_path: Path) -> None:
    file = tmp_path / "pe_hostfile"
    file.write_text(
        "a 4 all.q@a UNDEFINED\nb 2 all.q@b UNDEFINED\na 1 other.q@a <NULL>\n"
    )

    assert hosts_of({"PE_HOSTFILE": str(file)}) == [Host("a", 5), Host("b", 2)]

    file.write_text("a\n")
    with pytest.raises(HostsError, match="a host and its slots a line"):
        hosts_of({"PE_HOSTFILE": str(file)})


def test_lsf(tmp_path: Path) -> None:
    assert hosts_of({"LSB_MCPU_HOSTS": "a 4 b 2"}) == [Host("a", 4), Host("b", 2)]
    file = tmp_path / "hosts"
    file.write_text("a\na\nb\n")
    both = {"LSB_DJOB_HOSTFILE": str(file), "LSB_MCPU_HOSTS": "a 4 b 2"}
    assert hosts_of(both) == [Host("a", 2), Host("b", 1)]


@pytest.mark.parametrize("text", ["a", "a 4 b", "a 0", "a x"])
def test_lsf_cut_short(text: str) -> None:
    with pytest.raises(HostsError):
        hosts_of({"LSB_MCPU_HOSTS": text})


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[1,3-4]", ["n1", "n3", "n4"]),
        ("r[1-2]n[09-10]-ib", ["r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib"]),
        ("a,b[7]", ["a", "b7"]),
    ],
)
def test_node_lists(text: str, nodes: list[str]) -> None:
    assert [host.name for host in hosts_of({"SLURM_JOB_NODELIST": text})] == nodes


@pytest.mark.parametrize(
    "text",
    [
        *["n[1-", "n]1[", "a,,b", ",a", "n[]", "n[3-1]", "n[a-b]", "n[1[2]]"],
        # Not expanded: it would take all memory.
        *["n[0-9999999999]", "n[0-99999][0-99999][0-99999]"],
    ],
)
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ConfigError, match=r"such as n\[01-03,7\],m1"):
        hosts_of({"SLURM_JOB_NODELIST": text})


@pytest.mark.parametrize("text", ["", "2(x", "2(x3)4", "x", "1(x99999999999)"])
def test_what_are_no_counts(text: str) -> None:
    environment = {"SLURM_JOB_NODELIST": "n", "SLURM_TASKS_PER_NODE": text}
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE must be numbers"):
        hosts_of(environment)
