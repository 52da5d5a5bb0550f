"""What travels by value, and still finds its source."""

from __future__ import annotations

import inspect
import pickle

import tensorflow as tf

from ring_keras.engines import pickling


def test_functions_in_functions_keep_their_file():
    def outer():
        def inner():
            return inspect.getsource(inner)

        return inner

    # By value, as what a script itself defines travels.
    outer.__module__ = "__main__"
    copy = pickle.loads(pickling.dumps(outer))

    assert copy is not outer
    assert copy.__code__.co_filename == __file__
    assert "return inspect.getsource(inner)" in copy()()


def test_autograph_converts_what_has_travelled():
    def traced(x):
        if x > 1.0:
            x = -x
        return x

    traced.__module__ = "__main__"
    copy = pickle.loads(pickling.dumps(traced))

    assert copy is not traced
    assert float(tf.function(copy)(tf.constant(8.0))) == -8.0
