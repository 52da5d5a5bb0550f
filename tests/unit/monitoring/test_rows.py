"""Rows: differences, sums, and the way they travel."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from support.synthetic_run import slow_compute, updates

from ring_keras.monitoring.links import Link
from ring_keras.monitoring.records import Series, Thinning, kind_of_tag
from ring_keras.monitoring.rows import Row, Update


def totals(steps, waited):
    return SimpleNamespace(
        steps=steps,
        duration_s=0.1 * steps,
        input_s=0.0,
        compute_s=0.08 * steps,
        wait_s=0.02 * steps,
        exposed_s=0.0,
        overlap_s=0.01 * steps,
        bytes=100 * steps,
        collectives=3 * steps,
        examples=32 * steps,
        waited_for_s=waited,
    )


def test_a_row_is_what_was_added_since():
    row = Row.between(1, "b", totals(10, (0.1, 0.0, 0.3)), totals(30, (0.1, 0.0, 0.9)))
    assert (row.steps, row.bytes, row.examples) == (20, 2000, 640)
    assert row.duration_s == pytest.approx(2.0)
    assert row.waited_for_s == {2: pytest.approx(0.6)}


def test_the_first_row_has_all():
    assert Row.between(0, "a", None, totals(10, (0.0, 1.0))).waited_for_s == {1: 1.0}


def test_updates_travel_as_json():
    update = updates(slow_compute, count=1)[0]
    content = json.loads(json.dumps(update.to_json()))
    read = Update.from_json(update.step, update.time, content)
    assert read.rows[0].duration_s == pytest.approx(update.rows[0].duration_s, rel=1e-5)
    assert read.rows[0].waited_for_s.keys() == update.rows[0].waited_for_s.keys()


def test_sums_of_two_spans():
    one = Row(0, "a", 2, 1.0, waited_for_s={1: 0.5}, links=(Link(0, 1, 10, 1.0),))
    two = Row(0, "a", 3, 2.0, waited_for_s={1: 0.5, 2: 1.0})
    both = Update(2, 1.0, (one,)).plus(Update(5, 2.0, (two,)))
    assert (both.step, both.time, both.steps) == (5, 2.0, 5)
    assert both.rows[0].waited_for_s == {1: 1.0, 2: 1.0}
    assert both.links == (Link(0, 1, 10, 1.0),)


def test_a_link_that_was_connected_anew_begins_at_nothing():
    assert Link(0, 1, 50, 1.0).minus(Link(0, 1, 80, 2.0)) == Link(0, 1, 50, 1.0)
    assert Link(0, 1, 90, 3.0).minus(Link(0, 1, 80, 2.0)) == Link(0, 1, 10, 1.0)


def test_no_tag_has_more_records_than_tensorboard_keeps():
    series = Series("rows", 1.8e9)
    tags = [series.next_tag() for _ in range(100)]
    assert max(map(tags.count, tags)) < 10
    assert set(map(kind_of_tag, tags)) == {"rows"}
    assert kind_of_tag("epoch_loss") is None


def test_records_grow_with_the_logarithm_of_time():
    thinning = Thinning(0.0)
    due = [second for second in range(1, 1_000_000, 7) if thinning.is_due(second)]
    # Every 7 s at first; never later than 1/200 of the run.
    assert due[:3] == [1, 8, 15]
    assert len(due) < 2500
    assert due[-1] > 990_000
