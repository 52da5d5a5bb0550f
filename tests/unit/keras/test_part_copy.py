"""Copies of variables in one piece of memory."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import tensorflow as tf

from ring_keras.callbacks.part_copy import PartCopy

DTYPES = ["float32", "bfloat16", "float16", "float64", "int64", "uint32", "bool"]


def read(content, copy, variables):
    return [
        np.frombuffer(content[begin : begin + nbytes], v.dtype.as_numpy_dtype).tolist()
        for v, (begin, nbytes) in zip(variables, copy.places, strict=True)
    ]


@pytest.mark.parametrize("shape", [(), (3, 5), (0, 2)])
def test_every_kind_of_number(shape):
    count = int(np.prod(shape))
    numbers = np.arange(count).reshape(shape) % 2
    variables = [tf.Variable(tf.cast(numbers, dtype)) for dtype in DTYPES]
    copy = PartCopy(variables, b"its end")
    content = copy.take()

    assert read(content, copy, variables) == [numbers.ravel().tolist()] * len(DTYPES)
    begin, nbytes = copy.tail
    assert bytes(content[begin : begin + nbytes]) == b"its end"
    assert len(content) == begin + nbytes


def test_a_copy_stays_until_the_next_one():
    variable = tf.Variable([1.0, 2.0])
    copy = PartCopy([variable])
    content = copy.take()
    variable.assign_add([1.0, 1.0])

    assert read(content, copy, [variable]) == [[1.0, 2.0]]
    assert read(copy.take(), copy, [variable]) == [[2.0, 3.0]]


@pytest.mark.parametrize("count", [1, 1000, 1 << 20])
def test_it_begins_at_a_page(count):
    content = PartCopy([tf.Variable(tf.ones([count]))], b"its end").take()

    assert np.frombuffer(content, np.uint8).ctypes.data % mmap.PAGESIZE == 0


def test_nothing_is_something_too():
    assert len(PartCopy([]).take()) == 0
