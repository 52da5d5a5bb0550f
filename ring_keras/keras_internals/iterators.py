"""Iterators over datasets of `tf.data`."""

from typing import Any

import tensorflow as tf

__all__ = ["OWNED_ITERATOR"]

OWNED_ITERATOR: Any = tf.data.IteratorSpec(tf.TensorSpec(())).value_type
"""The class of those that `iter()` of a dataset makes."""
