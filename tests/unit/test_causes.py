"""Errors in one line."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ring_keras._causes import in_one_line
from ring_keras.engines.outcomes import lost_a_peer
from ring_keras.errors import RankMismatchError

PYTHON = """OSError: truncated JPEG: img_0042.jpg
Traceback (most recent call last):

  File "script_ops.py", line 269, in __call__
    ret = func(*args)

OSError: truncated JPEG: img_0042.jpg


\t [[{{node PyFunc}}]]"""
GRAPH = f"""Graph execution error:

Detected at node PyFunc defined at (most recent call last):
<stack traces unavailable>
{PYTHON}
\t [[IteratorGetNext]] [Op:__inference_multi_step_on_iterator_993]"""
STACK = """Graph execution error:

Detected at node Assert defined at (most recent call last):
  File "script.py", line 29, in <module>

  File "trainer.py", line 399, in fit

assertion failed: [too large] [0.5]
\t [[{{node Assert}}]] [Op:__inference_multi_step_on_iterator_1477]"""
ROOTS = """Graph execution error:

2 root error(s) found.
  (0) INVALID_ARGUMENT:  record is bad : Tensor had NaN values
\t [[{{node CheckNumerics}}]]
  (1) CANCELLED:  Function was cancelled before it was started
0 successful operations.
0 derived errors ignored. [Op:__inference_multi_step_on_iterator_1]"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PYTHON, "OSError: truncated JPEG: img_0042.jpg"),
        (GRAPH, "OSError: truncated JPEG: img_0042.jpg"),
        (STACK, "assertion failed: [too large] [0.5]"),
        (ROOTS, "INVALID_ARGUMENT:  record is bad : Tensor had NaN values"),
        ("{{function_node __wrapped__X}} it is bad [Op:X]", "it is bad"),
        ("one line\nand another", "one line"),
        ("", ""),
    ],
)
def test_an_error_of_tensorflow_is_told_by_its_cause(text, said):
    error = tf.errors.UnknownError(None, None, text)
    assert in_one_line(error) == f"UnknownError: {said}".strip()


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("[RK310] model 'm': rank 1 cannot take part: its fit() raised X: y", True),
        ("[RK302] allreduce 'x': shape differs across ranks", False),
    ],
)
def test_who_fails_because_another_rank_does_is_no_cause(text, follows):
    assert lost_a_peer(RankMismatchError(text)) == follows
