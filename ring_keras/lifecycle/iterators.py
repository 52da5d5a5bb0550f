"""Ends `tf.data` iterators while Python can still run their functions.

The destructor of an iterator waits for its threads. If one of them runs a Python
function (`Dataset.from_generator`, `tf.numpy_function`), it needs the GIL, and a
thread that asks for the GIL once the interpreter has begun to end never comes back.
So whoever destroys that iterator then, the last garbage collection or the end of a
module, waits for ever.
"""

import gc
import threading
from typing import Any

import tensorflow as tf

__all__ = ["end_iterators"]


def end_iterators(timeout_s: float) -> None:
    """Destroys every iterator of this process; nothing may use one afterwards.

    An iterator whose Python function does not return in time is left to the end of
    the process: a leak then costs nothing, and a wait might not end.

    Args:
        timeout_s: For all of them together.
    """
    # One that was made from another's resource has it in both places.
    resources = [
        iterator.__dict__.pop(name, None)
        for iterator in _living_iterators()
        for name in ("_iterator_resource", "_components")
    ]
    if not resources:
        return

    def destroy() -> None:
        while resources:
            resources.pop()

    # A daemon: Python does not wait for it, nor clear what its frame refers to.
    thread = threading.Thread(target=destroy, name="end_iterators", daemon=True)
    thread.start()
    thread.join(timeout_s)


def _living_iterators() -> list[Any]:
    # An object may pretend to be of another class, and import it to do so: only
    # its type is asked.
    is_iterator: dict[type, bool] = {}
    found = []
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in is_iterator:
            is_iterator[kind] = issubclass(kind, tf.data.Iterator)
        if is_iterator[kind]:
            found.append(thing)
    return found
