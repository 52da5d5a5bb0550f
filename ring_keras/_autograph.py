"""Keeps AutoGraph from rewriting this package.

`tf.function` rewrites whatever its function calls, unless it is of a package that
AutoGraph knows: Keras is one. This package has nothing to gain, since it writes its
conditions with `tf.cond`, and a step of a loop of one's own calls so much of it that
the first one took five seconds of a core, instead of a third of one.
"""

from __future__ import annotations

import contextlib

__all__ = ["leave_unconverted"]


def leave_unconverted(package: str) -> None:
    """Adds a package to those that AutoGraph calls as they are."""
    # TensorFlow has no public name for the list; do_not_convert() takes functions
    # one by one, and the methods that we put into optimizers are not functions.
    with contextlib.suppress(AttributeError, ImportError):  # init() says so.
        from tensorflow.python.autograph.core import config

        rule = config.DoNotConvert(package)
        config.CONVERSION_RULES = (rule, *config.CONVERSION_RULES)
