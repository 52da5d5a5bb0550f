"""What travels between hosts, encrypted: nobody reads it, nobody changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.engine_only import WITHOUT_TENSORFLOW, join
from support.hosts import run_on
from support.man_in_the_middle import ManInTheMiddle, after
from support.run_ranks import run_ranks

from ring_keras import _native

ENCRYPT = {"RING_KERAS_ENCRYPT": "1"}
OVER_TCP = {**WITHOUT_TENSORFLOW, "RING_KERAS_TRANSPORT": "tcp"}
SECRET = b"nobody else's business; "


def reduce_many_sizes() -> list[bool]:
    rank, size = join()
    exact = []
    # 0.06 to 8 MB, and what rides in announcements.
    for count in (1, 700, 3_000, 40_000, 16_384, 600_000, 2_000_000, 5):
        pattern = np.arange(count, dtype=np.float32) % 1000
        for turn in range(2):
            total = _native.allreduce(pattern + rank + turn, "sum", f"of{count}")
            expected = size * (pattern + turn) + sum(range(size))
            exact.append(bool((total == expected).all()))
    rows = _native.allgather(np.full((rank, 3), rank, np.int32), "rows")
    exact.append(rows[:, 0].tolist() == [r for r in range(size) for _ in range(r)])
    return exact


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_encrypted_sums_are_exact(size: int) -> None:
    results = run_ranks(reduce_many_sizes, size, env=OVER_TCP | ENCRYPT)
    assert results == [[True] * 17] * size


def tell_secret() -> bytes:
    rank, _ = join()
    data = np.frombuffer(SECRET * 5_000, np.uint8)
    own = data.copy() if rank == 0 else np.zeros_like(data)
    told = _native.broadcast(own, 0, "secret")
    return bytes(told[: len(SECRET)].tobytes())


@pytest.mark.parametrize("env", [{}, ENCRYPT], ids=["plain", "encrypted"])
def test_who_listens_learns_nothing(make_hosts: Any, env: dict[str, str]) -> None:
    link = make_hosts(ManInTheMiddle())
    assert run_on(link, tell_secret, [0, 1], more_env=env) == [SECRET, SECRET]
    # Names of hosts go to the store, names of collectives and data to ranks.
    for told in (SECRET[:12], b"host1", b"secret"):
        assert link.saw(told) == (not env), told


def reduce_a_large_one() -> bool:
    rank, _ = join()
    total = _native.allreduce(np.full(1 << 20, rank + 1, np.float32), "sum", "large")
    return bool((total == 3).all())


def test_a_bit_that_flips_on_the_way_is_an_error(make_hosts: Any) -> None:
    link = make_hosts(ManInTheMiddle(after(100, at=-500)))
    outcomes = run_on(link, reduce_a_large_one, [0, 1], more_env=ENCRYPT, check=False)
    assert link.flipped
    for outcome in outcomes:
        assert not outcome.returned, outcome.describe()
        assert "the connection between rank 0" in outcome.message, outcome.describe()
        assert "and rank 1" in outcome.message
        assert "changed on its way" in outcome.message


def reduce_beside_one_that_waits() -> None:
    rank, _ = join()
    pair = _native.add_communicator([0, 1])
    if rank == 2:
        _native.barrier("what the others never enter")
    else:
        _native.allreduce(np.ones(1 << 20, np.float32), "sum", "large", None, pair)


def test_who_leaves_for_it_says_so(make_hosts: Any) -> None:
    link = make_hosts(ManInTheMiddle(after(100, at=-500)))
    *_, waited = run_on(
        link, reduce_beside_one_that_waits, [0, 1, 0], more_env=ENCRYPT, check=False
    )
    assert not waited.returned, waited.describe()
    assert "left: the test ended, after the connection between" in waited.message
    assert "changed on its way" in waited.message


def join_only() -> None:
    join()


@pytest.mark.parametrize("encrypting", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_does_not_do_as_the_store_is_refused(encrypting: int) -> None:
    env = [OVER_TCP | {"RING_KERAS_INIT_TIMEOUT_S": "20"} for _ in range(2)]
    env[encrypting] |= ENCRYPT
    _, refused = run_ranks(join_only, 2, env=env, check=False)
    assert not refused.returned, refused.describe()
    one, other = ("the store", "rank 1") if encrypting == 0 else ("rank 1", "the store")
    said = f"{one} encrypts its connections, and {other} does not."
    assert said in refused.message, refused.describe()
