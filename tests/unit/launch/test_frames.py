"""Messages between launcher and agent, as bytes that may be anything."""

import struct

import pytest

from ring_keras.launch.frames import (
    GREETING,
    MAX_FRAME_NBYTES,
    FrameReader,
    Output,
    ProtocolError,
    encode,
    field,
)

MESSAGES = [
    {"type": "hello", "text": "no Unicode: \udcff", "numbers": [1, 2.5, None, True]},
    Output(7, "stdout", b"\0any \xff bytes\n"),
    Output(1 << 20, "stderr", b""),
    {"type": "ping"},
]


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
def test_messages_arrive_however_they_are_cut(step):
    stream = b"".join(map(encode, MESSAGES))
    reader = FrameReader(greeted=True)
    found = []
    for start in range(0, len(stream), step):
        found += reader.feed(stream[start : start + step])
    assert found == MESSAGES


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_what_comes_before_the_greeting_is_set_aside(step):
    stream = b"Welcome to b\nLast login\n" + GREETING + encode(MESSAGES[0])
    reader = FrameReader(greeted=False)
    found = []
    for start in range(0, len(stream), step):
        found += reader.feed(stream[start : start + step])
    assert found == MESSAGES[:1]
    assert reader.skipped == b"Welcome to b\nLast login\n"


def test_something_that_never_greets_is_no_agent():
    reader = FrameReader(greeted=False)
    assert list(reader.feed(b"x" * 60_000)) == []
    with pytest.raises(ProtocolError, match="something else than an agent"):
        list(reader.feed(b"x" * 60_000))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "cannot have 0 bytes"),
        (b"\3x", "not a message"),
        (b"\1{", "not JSON"),
        (b"\1[1]", "not a message"),
        (b'\1{"kind": "ping"}', "not a message"),
        (b"\1" + b"[" * 100_000, "not JSON"),
        (b"\1\xff", "not JSON"),
        (b"\2\0", "not a message"),
        (b"\2\0\0\0\1\7data", "not a message"),
    ],
)
def test_what_is_no_message_is_refused(body, message):
    with pytest.raises(ProtocolError, match=message):
        list(FrameReader(greeted=True).feed(struct.pack(">I", len(body)) + body))


def test_a_length_is_refused_before_its_bytes_come():
    with pytest.raises(ProtocolError, match="cannot have 4294967295 bytes"):
        list(FrameReader(greeted=True).feed(b"\xff\xff\xff\xff"))


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(ProtocolError, match="at most"):
        encode({"type": "plan", "environment": "x" * MAX_FRAME_NBYTES})


@pytest.mark.parametrize(
    ("value", "kind"), [("1", int), (True, int), (1, bool), (None, str), (1, float)]
)
def test_a_field_has_its_type(value, kind):
    with pytest.raises(ProtocolError, match="'plan' must have size"):
        field({"type": "plan", "size": value}, "size", kind)


def test_what_follows_a_message_can_be_exchanged():
    reader = FrameReader(greeted=True)
    messages = reader.feed(encode(MESSAGES[0]) + b"no frame")
    assert next(messages) == MESSAGES[0]
    assert reader.take_rest() == b"no frame"
    reader.put(encode(MESSAGES[1]))
    assert list(messages) == [MESSAGES[1]]
