"""Every offset is in one window of one rank, and files say so."""

from __future__ import annotations

import dataclasses
import json

import hypothesis
import pytest
from hypothesis import strategies as some

from ring_keras.data.kafka_pass import KafkaPass, Piece, read_pass, write_pass


def a_pass(counts, ranks=2, batch_size=4, **kwargs):
    pieces = tuple(Piece("t", p, 10 * p, 10 * p + n) for p, n in enumerate(counts))
    return KafkaPass(("t",), ranks, batch_size, None, pieces, **kwargs)


@hypothesis.given(
    some.lists(some.integers(0, 40), min_size=1, max_size=6),
    some.integers(1, 5),
    some.integers(2, 9),
)
def test_each_offset_is_in_one_window(counts, ranks, batch_size):
    hypothesis.assume(sum(counts) >= ranks)
    kept = a_pass(counts, ranks, batch_size)
    windows = [
        kept.offsets_of(rank, step, step + 1)
        for rank in range(ranks)
        for step in range(kept.steps)
    ]

    found = [
        (piece.partition, offset)
        for window in windows
        for piece in window
        for offset in range(piece.first, piece.end)
    ]
    assert found == [
        (piece.partition, offset)
        for piece in kept.offsets
        for offset in range(piece.first, piece.end)
    ]
    sizes = {sum(piece.end - piece.first for piece in window) for window in windows}
    assert 1 <= min(sizes) <= max(sizes) <= min(batch_size, min(sizes) + 1)


def test_a_rank_has_a_range():
    kept = a_pass([3, 0, 9], ranks=2, batch_size=3)

    assert kept.steps == 2
    assert kept.offsets_of(0, 0, 2) == [Piece("t", 0, 0, 3), Piece("t", 2, 20, 23)]
    assert kept.offsets_of(1, 0, 1) == [Piece("t", 2, 23, 26)]


def test_a_file_has_what_was_written(tmp_path):
    path = tmp_path / "offsets"
    for kept in (a_pass([5, 7]), a_pass([5, 7], first_step=3, epochs=2)):
        write_pass(path, kept)
        assert read_pass(path) == kept
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 0},
        {"ranks": True},
        {"batch_size": 2.0},
        {"after": 3},
        {"topics": "t"},
        {"topics": []},
        {"topics": [1]},
        {"topics": ["t", "u"]},
        {"offsets": {}},
        {"offsets": [1]},
        {"offsets": [["t", 0, 5, 3]]},
        {"offsets": [["t", -1, 0, 9]]},
        {"offsets": [["t", 0, 0, 9], ["t", 0, 0, 9]]},
        {"offsets": [["t", [], 0, 9]]},
        {"first_step": -1, "epochs": 1},
        {"first_step": 0},
        {"epochs": 1},
        {"more": 1},
    ],
)
def test_other_files_are_refused(tmp_path, change):
    path = tmp_path / "offsets"
    content = json.loads(json.dumps(dataclasses.asdict(a_pass([5, 7]))))
    path.write_text(json.dumps({**content, **change}))

    with pytest.raises(ValueError, match="was not written by"):
        read_pass(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"{}"])
def test_what_is_no_such_json_is_refused(tmp_path, content):
    path = tmp_path / "offsets"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="was not written by"):
        read_pass(path)
