"""Hosts and slots: what is read, what is refused, and who gets the ranks."""

from pathlib import Path

import pytest

from ring_keras.launch.hosts import (
    Host,
    HostsError,
    fill,
    parse_hosts,
    parse_lines,
    read_hostfile,
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a", 1)]),
        ("a:4,b:2", [Host("a", 4), Host("b", 2)]),
        ("a:1, b:1 ,a:2", [Host("a", 3), Host("b", 1)]),
        ("me@a.example:2", [Host("me@a.example", 2)]),
        ("10.0.0.1:2", [Host("10.0.0.1", 2)]),
        ("[2001:db8::7]:4", [Host("2001:db8::7", 4)]),
        ("2001:db8::7", [Host("2001:db8::7", 1)]),
        ("fe80::1%eth0", [Host("fe80::1%eth0", 1)]),
    ],
)
def test_what_the_option_takes(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a host, or HOST:SLOTS, not ''"),
        ("[", "expected a host, or HOST:SLOTS"),
        ("[]:2", "expected a host, or HOST:SLOTS"),
        ("[-oProxyCommand=x]", "expected a host, or HOST:SLOTS"),
        ("[-v]:2", "expected a host, or HOST:SLOTS"),
        ("a[b]", "expected a host, or HOST:SLOTS"),
        ("a:2,,b:2", "expected a host, or HOST:SLOTS, not ''"),
        ("a:", "at least 1, not 'a:'"),
        ("a:0", "at least 1, not 'a:0'"),
        ("a:-1", "at least 1, not 'a:-1'"),
        ("a:two", "at least 1, not 'a:two'"),
        ("a:\u0662", "at least 1, not 'a:\u0662'"),  # A digit, but not one of ours.
        # It would be an option of ssh.
        ("-oProxyCommand=touch:1", "not '-oProxyCommand=touch'"),
        ("a b:1", "not 'a b'"),
        ("$(reboot)", "not '$(reboot)'"),
    ],
)
def test_what_the_option_refuses(text: str, message: str) -> None:
    with pytest.raises(HostsError) as caught:
        parse_hosts(text)
    assert message in str(caught.value)


def test_what_a_hostfile_may_hold(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# a comment\n\n"
        "a slots=2\n"
        "  b:3  # another\n"
        "c\n"
        "d slots=2 max_slots=8\n"
        "a\n"
        "2001:db8::7 slots=2\n"
    )
    assert read_hostfile(file) == [
        Host("a", 3),
        Host("b", 3),
        Host("c", 1),
        Host("d", 2),
        Host("2001:db8::7", 2),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=2\nb slots=none\n", ", line 2: slots must be an integer"),
        ("a\n\n-l root\n", ", line 3: expected `host`"),
        ("a 4\n", ", line 1: expected `host`"),
        ("a slot=4\n", "line 1: expected `host`, `host:4` or `host slots=4`"),
        ("# none\n\n", ": names no host"),
        (b"\xff\n", ": is not text"),
    ],
)
def test_a_bad_hostfile_names_the_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HostsError) as caught:
        read_hostfile(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


def test_a_missing_hostfile(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match="No such file"):
        read_hostfile(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("size", "filled"),
    [
        (1, [Host("a", 1)]),
        (3, [Host("a", 2), Host("b", 1)]),
        (5, [Host("a", 2), Host("b", 3)]),
    ],
)
def test_hosts_are_filled_in_order(size: int, filled: list[Host]) -> None:
    assert fill([Host("a", 2), Host("b", 3)], size) == filled


def test_more_ranks_than_slots() -> None:
    with pytest.raises(HostsError, match=r"6 ranks need .* there are 5: a:2, b:3"):
        fill([Host("a", 2), Host("b", 3)], 6)


def test_lines_may_leave_slots_to_a_default() -> None:
    lines = ["# a comment", "a", "b:3", "c slots=1", "a"]
    hosts = [Host("a", 4), Host("b", 3), Host("c", 1)]
    assert parse_lines(lines, "script", default_slots=2) == hosts
    assert parse_lines([], "script") == []
