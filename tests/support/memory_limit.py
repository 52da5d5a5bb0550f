"""A control group with little memory, for real deaths of the OOM killer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ring_keras.launch.control_group import MemoryCgroup
from support.processes import wait_until


@contextlib.contextmanager
def memory_limit(name: str, nbytes: int) -> Iterator[list[str]]:
    """Such a group, as the words before a command that put it there."""
    with memory_group(name, nbytes) as group:
        enter = f'echo $$ > "{group / "cgroup.procs"}" && exec "$@"'
        yield ["sh", "-c", enter, "sh"]


@contextlib.contextmanager
def memory_group(name: str, nbytes: int) -> Iterator[Path]:
    """Makes such a group below this process's own, so that no other limit is evaded.

    Skips the test where such a group cannot be made.
    """
    own = MemoryCgroup.of_this_process()
    if own is None:
        pytest.skip("no control group accounts for this process's memory")
    group = own.directory / name
    limit = "memory.limit_in_bytes" if own.version == 1 else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        try:
            (group / limit).write_text(str(nbytes))
        except OSError as error:
            pytest.skip(f"no memory can be limited: {error}")
        yield group
    finally:
        wait_until(lambda: _removed(group), f"{group} is empty")


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()
