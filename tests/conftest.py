"""Fixtures for every test, and options of ours."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

# `support` is imported by its name whatever pytest's import mode is.
TESTS_DIR = str(Path(__file__).resolve().parent)
if TESTS_DIR not in sys.path:
    sys.path.insert(0, TESTS_DIR)

from support.network import Hosts  # noqa: E402
from support.rank_pool import RankPools  # noqa: E402

MadeHosts = TypeVar("MadeHosts", bound=Hosts)

_POOLS = pytest.StashKey[RankPools]()
_POOL_ERRORS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def rank_pool(request: pytest.FixtureRequest) -> RankPools:
    """Warm ranks: `rank_pool(size).run(worker)`; see `support.RankPool`.

    `rank_pool(size, env={"RING_KERAS_TRANSPORT": "tcp"})` gives ranks with that
    in their environment. With TESTS_WITHOUT_TENSORFLOW in it they join the core
    alone, in a tenth of the time.
    """
    return request.config.stash[_POOLS]


@pytest.fixture
def make_hosts() -> Iterator[Callable[[MadeHosts], MadeHosts]]:
    """Makes hosts, which are gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(hosts: MadeHosts) -> MadeHosts:
            if os.geteuid() != 0:
                pytest.skip("making network namespaces needs root")
            try:
                stack.enter_context(hosts)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
            return hosts

        yield make


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        type=_part,
        metavar="K/N",
        help="of the tests marked slow, the K-th of N parts",
    )


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"expected K/N such as 2/4, got '{text}'")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_POOLS] = RankPools()
    config.stash[_POOL_ERRORS] = []


# What is imported until the tests begin is no test's garbage: to look through it,
# again and again, would take a tenth of their time.
gc.disable()


def pytest_collection_finish() -> None:
    """Everything is imported."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out the slow tests of other parts."""
    if config.getoption("part") is None:
        return
    number, count = config.getoption("part")
    # By name, so that a test stays in its part when others come and go.
    left_out = [
        item
        for item in items
        if item.get_closest_marker("slow")
        and zlib.crc32(item.nodeid.encode()) % count != number - 1
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A pool that does not end cleanly fails the run, and no test beside it."""
    config = session.config
    errors = config.stash[_POOL_ERRORS] + config.stash[_POOLS].close()
    config.stash[_POOL_ERRORS] = errors
    worker_output = getattr(config, "workeroutput", None)
    if worker_output is not None:
        worker_output["pool_errors"] = errors
    elif errors and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker's pools had to say, as its process ends."""
    node.config.stash[_POOL_ERRORS] += getattr(node, "workeroutput", {}).get(
        "pool_errors", []
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Shows the pools that did not end cleanly, with the tests they had run."""
    for error in config.stash[_POOL_ERRORS]:
        terminalreporter.section("a pool of ranks did not end cleanly", red=True)
        terminalreporter.write_line(error)
