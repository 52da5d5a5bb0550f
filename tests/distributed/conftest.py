"""Fixtures for tests with several ranks."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from support.network import Hosts

MadeHosts = TypeVar("MadeHosts", bound=Hosts)


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
