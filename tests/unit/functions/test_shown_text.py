"""Bytes of ringrun's as text, however they are cut."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_keras.functions.job_output import ShownInCell, ShownText


def shown(kind, pieces):
    """What such a stream gets."""
    stream = io.StringIO()
    text = kind(stream)
    for piece in pieces:
        text.write(piece)
    text.write(b"")
    return stream.getvalue()


def in_a_cell(text):
    """The lines as a notebook shows them: a carriage return goes back to the start."""
    lines = []
    for line in text.split("\n"):
        cells = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines


@pytest.mark.parametrize("kind", [ShownInCell, ShownText])
@given(st.lists(st.sampled_from(["\r", "\x1b[K", "\x1b", "[K", "\n", "10%", "ö ━"])))
def test_how_the_bytes_are_cut_changes_nothing(kind, words):
    data = "".join(words).encode()

    at_once = shown(kind, [data] if data else [])

    assert shown(kind, [bytes([byte]) for byte in data]) == at_once


def test_what_is_no_text_is_replaced():
    assert shown(ShownText, [b"a\xff\xc3", b"\xa4\xc3"]) == "a\ufffdä\ufffd"


def test_a_shorter_line_leaves_nothing_of_a_longer_one():
    clear = b"\r\x1b[K"
    data = b"first\nlong progress 10%" + clear + b"short" + clear + b"done\n"

    assert in_a_cell(shown(ShownInCell, [data])) == ["first", "done", ""]


def test_lines_that_take_nothing_back_stay_as_they_are():
    assert shown(ShownInCell, [b"one\n\r\x1b[Ktwo\n10%\r20%"]) == "one\ntwo\n10%\r20%"
