"""Arguments that are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

import ring_keras as ring
from ring_keras.ops.grouped_allreduce import allreduce_start, allreduce_wait

# A number of rows that leaves open how many there are.
_ROWS = tf.TensorSpec([None, 3])


@pytest.mark.parametrize("reduce", [ring.allreduce, ring.reducescatter])
def test_reduce_ops(reduce: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot average int32.*ring_keras\.Sum"):
        reduce([1])
    with pytest.raises(ValueError, match="op='sum', dtype=bool"):
        reduce([True], "sum")
    with pytest.raises(ValueError, match=r"'sum', 'average'.*Received: op='mean'"):
        reduce([1.0], "mean")


@pytest.mark.parametrize(
    "collective",
    [ring.allreduce, ring.allgather, ring.broadcast, ring.reducescatter, ring.alltoall],
)
def test_dtypes(collective: Callable[..., Any]) -> None:
    for value in (["text"], [1 + 2j], tf.constant([1], tf.uint64)):
        with pytest.raises(
            TypeError, match=r"moves tensors of uint8.*Received: dtype="
        ):
            collective(value)


def test_sparse_tensors() -> None:
    slices = tf.IndexedSlices([[1.0]], [0], [2, 1])
    with pytest.raises(ValueError, match="IndexedSlices takes op='sum' or 'average'"):
        ring.allreduce(slices, ring.Max)


def test_splits() -> None:
    for splits in ([1.0], []):
        with pytest.raises(ValueError, match=r"`splits`.*Received: dtype="):
            ring.alltoall([1.0], tf.constant(splits))


@pytest.fixture
def job() -> Iterator[None]:
    """A graph holds numbers of communicators, which a job has."""
    ring.init()
    yield
    ring.shutdown()


@pytest.mark.usefixtures("job")
def test_numbers_are_where_the_engine_reads_them() -> None:
    """Anywhere else, as on the GPU of the tensors, they would be copied each step."""

    @tf.function(input_signature=[_ROWS, tf.TensorSpec([])])
    def reduce(rows: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
        tensor = ring.allreduce(rows, prescale_factor=0.5, postscale_factor=weight)
        return allreduce_wait(allreduce_start([tensor], weight=weight))

    numbers = [
        tensor.op
        for operation in reduce.get_concrete_function().graph.get_operations()
        if operation.type.startswith("RingKeras")
        for tensor in operation.inputs
        if tensor.dtype == tf.float64
    ]
    assert len(numbers) == 5
    for number in numbers:
        device = tf.DeviceSpec.from_string(number.device)
        assert (device.device_type, device.device_index) == ("CPU", 0), number


@pytest.mark.usefixtures("job")
def test_static_shapes() -> None:
    """What is known when a graph is built stays known."""

    @tf.function(input_signature=[_ROWS, tf.TensorSpec([4])])
    def shapes(rows: tf.Tensor, four: tf.Tensor) -> tf.Tensor:
        assert ring.allreduce(four).shape == [4]
        assert ring.allreduce(rows).shape.as_list() == [None, 3]
        assert [t.shape.as_list() for t in ring.grouped_allreduce([rows, four])] == [
            [None, 3],
            [4],
        ]
        assert ring.allgather(four).shape.as_list() == [None]
        assert ring.allgather(rows).shape.as_list() == [None, 3]
        assert ring.allgather(1.0).shape.as_list() == [None]
        assert ring.reducescatter(rows).shape.as_list() == [None, 3]
        received, splits = ring.alltoall(rows, [1])
        assert received.shape.as_list() == [None, 3]
        assert splits.shape.as_list() == [None]
        return four

    shapes.get_concrete_function()


@pytest.mark.usefixtures("job")
def test_scalars_have_no_rows() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.function(lambda: ring.reducescatter(1.0)).get_concrete_function()
