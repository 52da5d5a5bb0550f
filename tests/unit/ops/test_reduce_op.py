"""The names of reductions."""

import keras
import pytest

import ring_keras as ring


@pytest.mark.parametrize("name", ["avg", "Average", 3])
def test_an_unknown_name_is_told_the_known_ones(name):
    sentence = r"`op` must be a ring_keras\.ReduceOp or one of 'sum', 'average'"
    for call in (
        lambda: ring.ReduceOp(name),
        lambda: ring.DistributedOptimizer(keras.optimizers.SGD(), op=name),
        lambda: ring.allreduce(1.0, op=name),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()
