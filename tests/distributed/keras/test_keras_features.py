"""Each feature of Keras on 2 and 3 ranks is what it is in one process."""

from __future__ import annotations

import importlib.util

import pytest
from support.features import faults, measure_group
from support.features.groups import GROUPS

# Few enough for a run to take seconds, and a failure to show which.
PER_RUN = 6

# Of each group the first ones are tested often; all of them by `-m slow`.
RUNS = [
    pytest.param(
        group,
        features[start : start + PER_RUN],
        id=f"{group}-{start}",
        marks=pytest.mark.slow if start else (),
    )
    for group, features in GROUPS.items()
    for start in range(0, len(features), PER_RUN)
]
MISSING = sorted(
    {
        feature.needs
        for features in GROUPS.values()
        for feature in features
        if importlib.util.find_spec(feature.needs) is None
    }
)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("group", "features"), RUNS)
def test_feature_matches_one_process(rank_pool, group, features, size):
    features = [feature for feature in features if feature.needs not in MISSING]
    names = [feature.name for feature in features]

    results = rank_pool(size).run(measure_group, args=(group, names), timeout_s=150)

    wrong = [
        line
        for feature, by_rank in zip(features, zip(*results, strict=True), strict=True)
        for line in faults(feature, by_rank)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_nothing_was_left_out():
    """Shows in a report as skipped where some features were."""
