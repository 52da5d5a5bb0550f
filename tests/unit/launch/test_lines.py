"""Bytes become lines."""

import pytest

from ring_keras.launch import lines as lines_module
from ring_keras.launch.lines import LineBuffer


@pytest.mark.parametrize("piece_nbytes", [1, 2, 3, 5, 100])
def test_lines_do_not_depend_on_how_the_bytes_came(piece_nbytes):
    text = b"one\n\ntwo\r\n10%\r20%\r\n30%\r40%\nlast \xff\0"
    buffer = LineBuffer()

    lines = []
    for start in range(0, len(text), piece_nbytes):
        lines += buffer.feed(text[start : start + piece_nbytes])
    lines += buffer.finish()

    assert lines == [b"one", b"", b"two", b"20%", b"40%", b"last \xff\0"]


def test_nothing_is_left_after_finish():
    buffer = LineBuffer()
    buffer.feed(b"a\nb")

    assert buffer.finish() == [b"b"]
    assert buffer.finish() == []


def test_progress_is_what_follows_the_last_carriage_return():
    buffer = LineBuffer()

    assert buffer.feed(b"plain") == []
    assert buffer.progress() is None
    buffer.feed(b"\r10%")
    assert buffer.progress() == b"10%"
    buffer.feed(b"\r20%\r")
    assert buffer.progress() == b"20%"
    assert buffer.feed(b"\n") == [b"20%"]
    assert buffer.progress() is None


def test_an_endless_line_is_broken(monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_NBYTES", 10)
    buffer = LineBuffer()

    assert buffer.feed(b"x" * 10) == []
    assert buffer.feed(b"y") == [b"x" * 10 + b"y"]
    assert buffer.feed(b"z\n") == [b"z"]
