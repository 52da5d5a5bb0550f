"""The table in docs/keras.md has every feature, within its limits."""

from __future__ import annotations

import keras
import pytest
from support.features import Feature
from support.features.groups import GROUPS
from support.features.table import DOCUMENT, SIZES, read, replaced

TEXT = DOCUMENT.read_text(encoding="utf-8")
LINES = read(TEXT)

measured = pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
    reason="the table is of Keras 3.15, which has more",
)


@measured
def test_the_table_has_the_features_and_no_others():
    features = {(g, feature.name) for g, all_of in GROUPS.items() for feature in all_of}

    assert set(LINES) == features, (
        "measure what is new: PYTHONPATH=.:tests python -m support.features.table NAME"
    )


@pytest.mark.parametrize(
    ("group", "feature"),
    [
        pytest.param(group, feature, id=f"{group}/{feature.name}")
        for group, features in GROUPS.items()
        for feature in features
    ],
)
def test_what_was_measured_is_within_the_limits(group: str, feature: Feature):
    cells = LINES[group, feature.name]

    assert len(cells) == 2 * len(SIZES)
    for cell, limit in zip(
        cells, [feature.weight_limit, feature.metric_limit] * len(SIZES), strict=True
    ):
        assert cell == "-" or float(cell) <= limit


@measured
def test_writing_what_was_read_changes_nothing():
    assert replaced(TEXT, LINES) == TEXT
