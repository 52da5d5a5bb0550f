"""Who may say that an agent waits in a task, and for how long."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time

import pytest
from support.processes import wait_until

from ring_keras.engines import agent_desk
from ring_keras.engines.agent_desk import AgentDesk, DeskCard, JobIsOverError
from ring_keras.network.exchange import receive_request, send_answer

TOKEN = b"of the test"


def desk_at(host: str) -> AgentDesk:
    return AgentDesk(host, TOKEN, engine="Spark", origin="spark.driver.host")


def test_an_agent_is_there_while_its_task_is() -> None:
    with desk_at("127.0.0.1") as desk:
        with desk.card.visited() as visit:
            assert visit.own_address == "127.0.0.1"
            visit.say(3, 17, "192.0.2.1:5")
            wait_until(lambda: bool(desk.agents()), "it is there")
            ((name, address),) = desk.agents().items()
            assert name.startswith("task3-17-")
            assert address == "192.0.2.1:5"
            assert not visit.is_over(0)
            assert desk.has(3)
            assert not desk.has_had(4)
        wait_until(lambda: not desk.agents(), "it has gone")
        assert desk.has_had(3)
        assert not desk.has(3)
        wait_until(lambda: bool(desk.losses), "it was lost")

    assert desk.losses == ["Spark's task 3 at 192.0.2.1:5 ended"]


def test_a_driver_behind_nat_is_told_of() -> None:
    with pytest.raises(OSError, match=r"spark.driver.host is 192.0.2.9, .* NAT"):
        desk_at("192.0.2.9")


def test_the_newest_attempt_counts() -> None:
    """Of a host that is gone without a word, the desk still has a connection."""
    with (
        desk_at("127.0.0.1") as desk,
        desk.card.visited() as first,
        desk.card.visited() as second,
    ):
        first.say(0, 1, "192.0.2.1:5")
        wait_until(lambda: bool(desk.agents()), "the first is there")
        second.say(0, 2, "192.0.2.2:5")
        wait_until(
            lambda: list(desk.agents().values()) == ["192.0.2.2:5"],
            "the second is in its place",
        )


def test_a_line_that_breaks_does_not_end_the_job() -> None:
    def take_and_reset() -> None:
        line, _ = desk.accept()
        for word in ("welcome", "noted"):
            _, binding = receive_request(line, TOKEN)
            send_answer(line, TOKEN, binding, word)
        assert told.wait(30)
        # So it sends a reset, and no end of file.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()

    told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as desk:
        card = DeskCard("127.0.0.1", desk.getsockname()[1], TOKEN, "nothing")
        threading.Thread(target=take_and_reset, daemon=True).start()
        with card.visited() as visit:
            visit.say(0, 1, "192.0.2.1:5")
            told.set()
            with pytest.raises(ConnectionResetError):
                visit.is_over(30)


def test_tasks_are_told_that_the_job_is_over() -> None:
    with desk_at("127.0.0.1") as desk, desk.card.visited() as visit:
        visit.say(0, 1, "192.0.2.1:5")
        wait_until(lambda: bool(desk.agents()), "it is there")
        desk.dismiss()

        assert visit.is_over(30)
        with pytest.raises(JobIsOverError), desk.card.visited():
            pass

    assert desk.losses == []
    with (
        pytest.raises(OSError, match=r"is not reached at 127\.0\.0\.1"),
        desk.card.visited(),
    ):
        pass


def test_who_has_not_the_secret_is_nobody() -> None:
    with desk_at("127.0.0.1") as desk:
        stranger = dataclasses.replace(desk.card, token=b"another")
        with pytest.raises(JobIsOverError), stranger.visited():
            pass
        with socket.create_connection((desk.card.host, desk.card.port)) as line:
            line.sendall(b"\xff\xfe GET / HTTP/1.1\r\n" * 9)
            line.settimeout(30)
            while line.recv(4096):
                pass

        assert desk.agents() == {}
    assert desk.losses == []


def test_an_agent_may_take_longer_to_start_than_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_desk, "_PROOF_S", 0.5)
    with desk_at("127.0.0.1") as desk, desk.card.visited() as visit:
        time.sleep(1)  # As long as the agent takes.
        visit.say(3, 17, "192.0.2.1:5")
        wait_until(lambda: bool(desk.agents()), "it is there")


@pytest.mark.slow
def test_strangers_cost_few_threads_and_keep_no_task_out() -> None:
    with (
        contextlib.ExitStack() as stack,
        desk_at("127.0.0.1") as desk,
    ):
        before = threading.active_count()
        for _ in range(70):
            line = socket.create_connection((desk.card.host, desk.card.port), 30)
            stack.enter_context(line)
        visit = stack.enter_context(desk.card.visited())
        visit.say(3, 17, "192.0.2.1:5")
        wait_until(lambda: bool(desk.agents()), "it is there")
        wait_until(lambda: threading.active_count() <= before + 66, "the oldest left")
