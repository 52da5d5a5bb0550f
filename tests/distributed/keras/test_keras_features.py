"""Each feature of Keras on 2 and 3 ranks is what it is in one process."""

from __future__ import annotations

import importlib.util

import pytest
import tensorflow as tf
from support import training
from support.features import faults, measure_group, network
from support.features.groups import GROUPS

import ring_keras as ring

# Few enough for a run to take seconds, and a failure to show which.
PER_RUN = 1

# Of some groups the first ones are tested often; all of them by `-m slow`.
OFTEN = ["Optimizers", "Ways to train", "Batch normalization"]
RUNS = [
    pytest.param(
        group,
        features[start : start + PER_RUN],
        id=f"{group}-{start}",
        marks=pytest.mark.slow if start or group not in OFTEN else (),
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
    missing = [feature for feature in features if feature.needs in MISSING]
    features = [feature for feature in features if feature.needs not in MISSING]
    names = [feature.name for feature in features]

    results = rank_pool(size, env=network.ENVIRONMENT).run(
        measure_group, args=(group, names), timeout_s=150
    )

    wrong = [
        line
        for feature, by_rank in zip(features, zip(*results, strict=True), strict=True)
        for line in faults(feature, by_rank)
    ]
    assert not wrong, "\n".join(wrong)
    if missing:
        pytest.skip(
            f"not installed: {', '.join(f'{f.needs}, for {f.name}' for f in missing)}"
        )


def test_nothing_was_left_out():
    in_runs = [
        (run.values[0], feature.name) for run in RUNS for feature in run.values[1]
    ]

    assert sorted(in_runs) == sorted(
        (group, feature.name)
        for group, features in GROUPS.items()
        for feature in features
    )


def plan_worker():
    """The buckets of the network that the features train."""
    model = network.build(1)
    training.compile_model(model, ring.DistributedOptimizer("sgd"))
    model.build((None, 6))
    variables = model.trainable_variables

    @tf.function
    def step():
        model.optimizer.apply([tf.ones(v.shape, v.dtype) for v in variables], variables)

    operations = step.get_concrete_function().graph.get_operations()
    starts = [op for op in operations if op.type == "RingKerasAllreduceStart"]
    return [start.inputs[0].dtype.name for start in starts]


def test_the_network_has_several_buckets_of_several_dtypes(rank_pool):
    for dtypes in rank_pool(2, env=network.ENVIRONMENT).run(plan_worker):
        assert len(dtypes) > 2
        assert set(dtypes) == {"float32", "float64"}
