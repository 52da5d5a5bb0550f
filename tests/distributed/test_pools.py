"""What the warm ranks of the other tests are."""

from __future__ import annotations

from pathlib import Path

from support.rank_pool import RankPools


def command_line() -> bytes:
    return Path("/proc/self/cmdline").read_bytes()


def test_ranks_are_forked_with_tensorflow_imported(rank_pool: RankPools) -> None:
    # Else each would import it for itself: right, but slow.
    for command in rank_pool(2).run(command_line):
        assert b"support.fork_server" in command
