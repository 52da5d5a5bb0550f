"""The op that hands on what has been reduced, and what it says if that is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from ring_keras import _libraries, errors
from ring_keras.ops import gradients  # noqa: F401  Registers that of the op.

NAMES = "gradient 'a' (gradients/bucket0)\ngradient 'b' (gradients/bucket1)"
TENSORS = [np.arange(3, dtype=np.float32), np.array([[7.0]])]


def rows_of(*rows: list[float]) -> np.ndarray:
    """Each the number of a rank and checksums of both tensors."""
    return np.array([[row[0] + 1, *row[1:]] for row in rows], np.float64)


def column(tensor: int, expected: float, came: float, tolerance: float) -> np.ndarray:
    return np.array([tensor, expected, came, tolerance], np.float64)


RIGHT = column(0, 1.0, 1.01, 0.02)


def check(bits, *columns) -> list[np.ndarray]:
    with errors.translated():
        checked = _libraries.ops().ring_keras_check_reductions(
            bits=bits,
            sums=np.stack(columns, axis=1),
            tensors=[tf.constant(tensor) for tensor in TENSORS],
            names=NAMES,
        )
    return [tensor.numpy() for tensor in checked]


def test_what_is_right_is_handed_on():
    same = rows_of([0, 5, 6], [1, 5, 6])
    for checked, tensor in zip(check(same, RIGHT), TENSORS, strict=True):
        np.testing.assert_array_equal(checked, tensor)


def test_who_differs_from_most_is_named():
    rows = rows_of([0, 5, 6], [1, 5, 6], [4, 5, 255])
    with pytest.raises(errors.CorruptDataError) as caught:
        check(rows, RIGHT)
    message = str(caught.value)
    assert message.startswith(
        "[RK501] gradient 'b' (gradients/bucket1): its bits differ"
    )
    assert "ranks [0, 1] have the checksum 0x6, ranks [4] have the" in message
    assert "0xff. Most have one, so what ranks [4] got is wrong." in message
    assert "1 of 2 gradients differ" in message
    assert "dmesg" in message
    assert "edac" in message


def test_of_two_that_differ_either_may_be_wrong():
    with pytest.raises(errors.CorruptDataError, match="Which of them is wrong is not"):
        check(rows_of([0, 5, 6], [1, 7, 6]), RIGHT)


def test_who_took_no_part_is_left_out():
    check(rows_of([0, 5, 6], [-1, 0, 0], [2, 5, 6]), RIGHT)


@pytest.mark.parametrize("came", [1.0625, np.nan, np.inf])
def test_sums_that_rounding_does_not_explain(came):
    same = rows_of([0, 5, 6], [1, 5, 6])
    wrong = column(1, 1.0, came, 0.03125)
    with pytest.raises(errors.CorruptDataError) as caught:
        check(same, RIGHT, wrong)
    assert re.search(
        r"^\[RK501\] gradient 'b' \(gradients/bucket1\): what the ranks brought "
        r"adds up to 1, "
        rf"what came of the reduction to {came}, and rounding explains a difference of "
        r"0.03125 at most\. 1 of 2 blocks .* on all ranks alike",
        str(caught.value),
    )


@pytest.mark.skipif(
    not _libraries.has_xla_kernels(), reason="needs TensorFlow 2.20 or newer"
)
def test_it_is_the_same_under_xla():
    @tf.function(jit_compile=True)
    def compiled(bits, sums):
        tensors = [tf.constant(tensor) for tensor in TENSORS]
        return _libraries.ops().ring_keras_check_reductions(
            bits=bits, sums=sums, tensors=tensors, names=NAMES
        )

    same = tf.constant(rows_of([0, 5, 6], [1, 5, 6]))
    for checked, tensor in zip(
        compiled(same, tf.constant(RIGHT[:, None])), TENSORS, strict=True
    ):
        np.testing.assert_array_equal(checked, tensor)
    wrong = tf.constant(rows_of([0, 5, 6], [1, 5, 7]))
    with (
        pytest.raises(
            errors.CorruptDataError, match=r"^\[RK501\] gradient 'b' .* bits differ"
        ),
        errors.translated(),
    ):
        compiled(wrong, tf.constant(RIGHT[:, None]))


def test_gradients_pass_through():
    tensor = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        (checked,) = _libraries.ops().ring_keras_check_reductions(
            bits=rows_of([0, 5], [1, 5]),
            sums=RIGHT[:, None],
            tensors=[3.0 * tensor],
            names="one",
        )
    np.testing.assert_array_equal(tape.gradient(checked, tensor), [3.0, 3.0])
