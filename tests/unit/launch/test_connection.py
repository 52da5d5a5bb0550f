"""A line that must never block, and must notice its end."""

import os
import signal
import socket

import pytest

from ring_keras.launch.connection import Connection
from ring_keras.launch.frames import Output, encode
from ring_keras.launch.guard import FORWARDED_SIGNALS
from ring_keras.launch.loop import Loop


@pytest.fixture
def loop(tmp_path):
    """A loop that leaves signals as they were."""
    numbers = (*FORWARDED_SIGNALS, signal.SIGCHLD)
    handlers = {number: signal.getsignal(number) for number in numbers}
    reading, writing = os.pipe()
    yield Loop(reading, tmp_path, lambda _number: None)
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.close(reading)
    os.close(writing)


@pytest.fixture
def ticking(monkeypatch, loop):
    """A loop that ticks in each turn."""
    monkeypatch.setattr("ring_keras.launch.loop.TICK_S", 0.0)
    loop._next_tick = 0.0
    return loop


class End:
    """This end of a line, whose other end is a socket."""

    def __init__(self, loop, greeted=True):
        self.messages, self.reasons = [], []
        ours, self.other = socket.socketpair()
        self.other.setblocking(False)
        read_fd = ours.detach()
        self.connection = Connection(
            loop,
            read_fd,
            os.dup(read_fd),
            on_message=self.messages.append,
            on_end=self.reasons.append,
            greeted=greeted,
        )


def test_messages_come_and_pings_do_not(loop):
    end = End(loop)
    sent = [{"type": "ping"}, {"type": "a"}, Output(1, "stdout", b"x")]
    end.other.send(b"".join(map(encode, sent)))
    end.other.close()
    loop.turn(1)
    assert end.messages == sent[1:]
    assert end.reasons == ["the connection was closed"]
    assert not end.connection.is_open


def test_an_end_that_had_not_read_all_was_closed_too(loop):
    end = End(loop)
    end.connection.send({"type": "a"})
    end.other.close()  # Which the system tells as a reset.
    loop.turn(1)
    assert end.reasons == ["the connection was closed"]


def test_more_than_fits_is_sent_as_there_is_room(loop):
    end = End(loop)
    message = Output(0, "stdout", b"x" * 5_000_000)
    end.connection.send(message)
    assert not end.connection.drained
    received = b""
    while not end.connection.drained:
        received += end.other.recv(1 << 20)
        loop.turn(1)
    while len(received) < len(encode(message)):
        received += end.other.recv(1 << 20)
    assert received.startswith(encode(message))


def test_the_other_end_is_given_up_after_its_silence(ticking):
    end = End(ticking)
    end.connection.silence_s = 7.0
    ticks = 7 + 5  # Of a second.
    for _ in range(ticks):
        ticking.turn(0)
    assert end.reasons == []
    end.other.send(encode({"type": "ping"}))
    for _ in range(ticks):
        ticking.turn(0)
    assert end.reasons == []
    ticking.turn(0)
    ticking.turn(0)
    (reason,) = end.reasons
    assert "no word from it for 12 s (RING_KERAS_HEARTBEAT_TIMEOUT_S" in reason


def test_silence_before_the_greeting_has_no_end(ticking):
    end = End(ticking, greeted=False)
    for _ in range(100):
        ticking.turn(0)
    assert end.reasons == []


def test_nonsense_ends_it(loop):
    end = End(loop)
    end.other.send(b"GET / HTTP/1.1\r\n\r\n")
    loop.turn(1)
    (reason,) = end.reasons
    assert "makes no sense" in reason


def test_what_it_said_is_heard_although_nobody_listens_to_us(loop):
    end = End(loop)
    end.other.send(encode({"type": "last words"}))
    end.other.shutdown(socket.SHUT_RD)
    end.connection.send({"type": "a"})
    end.connection.send({"type": "b"})
    loop.turn(1)
    assert end.messages == [{"type": "last words"}]
