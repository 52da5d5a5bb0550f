"""What a rank says to Hydra, and what it makes of the answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ring_keras.config import ConfigError
from ring_keras.schedulers.pmi import Pmi

# What Hydra says to each command.
ANSWERS = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_1_0_2_vm",
    "put": "cmd=put_result rc=0 msg=success",
    "barrier_in": "cmd=barrier_out rc=0",
    "get": "cmd=get_result rc=0 value=a1b2=",
    "finalize": "cmd=finalize_ack rc=0",
}


class Hydra:
    """Answers one rank as Hydra does, from a thread."""

    def __init__(self) -> None:
        self.answers = dict(ANSWERS)
        self.heard: list[str] = []
        self.rank_end, self._own_end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self.rank_end.close()
        self._thread.join(timeout=10)
        self._own_end.close()

    def _serve(self) -> None:
        with self._own_end.makefile("r", encoding="ascii") as lines:
            for line in lines:
                self.heard.append(line.rstrip("\n"))
                answer = self.answers[line.split()[0].removeprefix("cmd=")]
                # In pieces, as a stream may bring it.
                for piece in (answer[:5], answer[5:], "\n" if answer else ""):
                    self._own_end.sendall(piece.encode())


@pytest.fixture
def hydra() -> Iterator[Hydra]:
    own = Hydra()
    yield own
    own.close()


@pytest.fixture
def pmi(hydra: Hydra) -> Callable[[float], Pmi]:
    def make(seconds: float = 10) -> Pmi:
        return Pmi(hydra.rank_end.fileno(), "MPICH", time.monotonic() + seconds)

    return make


def test_put_and_get(hydra: Hydra, pmi: Callable[..., Pmi]) -> None:
    with pmi() as talk:
        talk.put("key", "value")
        talk.barrier()
        assert talk.get("key") == "a1b2="

    assert hydra.heard == [
        "cmd=init pmi_version=1 pmi_subversion=1",
        "cmd=get_my_kvsname",
        "cmd=put kvsname=kvs_1_0_2_vm key=key value=value",
        "cmd=barrier_in",
        "cmd=get kvsname=kvs_1_0_2_vm key=key",
        "cmd=finalize",
    ]


def test_a_refusal_does_not_tell_the_value(
    hydra: Hydra, pmi: Callable[..., Pmi]
) -> None:
    hydra.answers["get"] = "cmd=get_result rc=-1 value=secret"

    with (
        pytest.raises(
            ConfigError, match=r"`get` on descriptor .*got .* rc=-1"
        ) as caught,
        pmi() as talk,
    ):
        talk.get("key")
    assert "secret" not in str(caught.value)
    # A process that has failed is no end that Hydra should take for a good one.
    assert "cmd=finalize" not in hydra.heard


def test_ranks_that_do_not_come(hydra: Hydra, pmi: Callable[..., Pmi]) -> None:
    hydra.answers["barrier_in"] = ""

    with (
        pytest.raises(ConfigError, match="no answer in time: not every rank called"),
        pmi(0.5) as talk,
    ):
        talk.barrier()


def test_a_second_process_of_the_same_rank(
    hydra: Hydra, pmi: Callable[..., Pmi]
) -> None:
    hydra.rank_end.shutdown(socket.SHUT_WR)
    hydra.rank_end.shutdown(socket.SHUT_RD)

    with pytest.raises(ConfigError, match="Only one process of a rank can ask"):
        pmi().__enter__()


def test_a_descriptor_that_was_closed() -> None:
    first, second = socket.socketpair()
    number = first.fileno()
    first.close()
    second.close()

    with pytest.raises(ConfigError, match=r"`init` on .*Bad file descriptor"):
        Pmi(number, "Intel MPI", time.monotonic() + 10).__enter__()
