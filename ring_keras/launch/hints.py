"""What to do about errors of Python and Keras whose own text does not say it."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["hints_in"]

_HINTS = (
    (
        # What Keras 3 says to `compile` of scripts for Keras 2, and to calls of what
        # was a method. Each part can match in one way and so many characters only:
        # ranks print anything.
        re.compile(
            rb"TypeError: [^\n]{0,200} unexpected keyword argument "
            rb"'experimental_run_tf_function'"
            rb"|\bvariables\(\)[^\n]{0,200}\n(?:[ \t~^|]{0,200}\n){0,3}"
            rb"[ \t]{0,200}TypeError: 'list' object is not callable"
        ),
        "a script for Keras 2? It needs `pip install tf_keras` and "
        'TF_USE_LEGACY_KERAS=1: see docs/horovod.md, "Keep Keras 2"',
    ),
    (
        re.compile(rb"^bdb\.BdbQuit$", re.MULTILINE),
        "a debugger found no input, or was told to quit. breakpoint() asks at this "
        "terminal, for rank 0; see docs/debugging.md",
    ),
    (
        re.compile(rb"\bcache lockfile already exists\b"),
        "two ranks write one cache file. Give each its own, as dataset.cache("
        "f'cache-{ring_keras.rank()}-of-{ring_keras.size()}') does, and remove what is "
        "left of the old one",
    ),
    (
        # What a SavedModel's writer says whose temporary files another one has taken.
        re.compile(rb"InvalidArgumentError: [^\n]{0,200}MergeV2Checkpoints"),
        "two ranks export to one folder? Put `if ring_keras.rank() == 0:` before "
        "model.export() and tf.saved_model.save()",
    ),
)


def hints_in(text: bytes) -> Iterator[str]:
    """What to say about a rank's lines, once the job has failed."""
    if any(word in text for word in (b"Error: ", b"BdbQuit", b"lockfile")):
        for pattern, hint in _HINTS:
            if pattern.search(text):
                yield hint
