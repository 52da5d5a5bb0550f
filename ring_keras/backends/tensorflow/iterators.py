"""Ends `tf.data` iterators while Python can still run their functions.

The destructor of an iterator waits for its threads. If one of them runs a Python
function (`Dataset.from_generator`, `tf.numpy_function`), it needs the GIL, and a
thread that asks for the GIL once the interpreter has begun to end never comes back.
So whoever destroys that iterator then, the last garbage collection or the end of a
module, waits for ever.
"""

import contextlib
import ctypes
import gc
import inspect
import sys
import threading
import types
from typing import Any

import tensorflow as tf

__all__ = ["end_iterators"]

# To clear the frame of a generator ends it.
_MAY_GO_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def end_iterators(timeout_s: float) -> None:
    """Destroys every iterator of this process; nothing may use one afterwards.

    An iterator whose Python function does not return in time is left to the end of
    the process, and so is one that something still holds which is not known here:
    a leak then costs nothing, and a wait might not end.

    Args:
        timeout_s: For all of them together.
    """
    handles = _living_handles()
    if not handles:
        return

    # A daemon: Python does not wait for it, nor clear what its frame refers to.
    thread = threading.Thread(
        target=_destroy, args=(handles,), name="end_iterators", daemon=True
    )
    thread.start()
    thread.join(timeout_s)


def _living_handles() -> list[Any]:
    """The tensors that own iterators: each is destroyed with its last one."""
    # Making a tensor would start TensorFlow, or fail in a finalized graph.
    eager_tensor = tf.__internal__.EagerTensor
    return [
        thing
        for thing in gc.get_objects()
        if type(thing) is eager_tensor
        and thing.dtype == tf.resource
        and "IteratorResource" in repr(thing)
    ]


def _destroy(handles: list[Any]) -> None:
    _drop_owners()
    _drop_frames(handles)
    while handles:
        handle = handles.pop()
        # `handle` and the argument of getrefcount.
        if sys.getrefcount(handle) > 2:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))  # Never destroyed.


def _drop_owners() -> None:
    # An object may pretend to be of another class, and import it to do so: only
    # its type is asked.
    is_iterator: dict[type, bool] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in is_iterator:
            is_iterator[kind] = issubclass(kind, tf.data.Iterator)
        if is_iterator[kind]:
            # One that was made from another's handle has it in both places.
            for name in ("_iterator_resource", "_components"):
                thing.__dict__.pop(name, None)


def _drop_frames(handles: list[Any]) -> None:
    """Those that an exception keeps: a failed step was called with its iterator."""
    owned = {id(handle) for handle in handles}
    for thing in gc.get_objects():
        if type(thing) is not types.TracebackType:
            continue
        frame = thing.tb_frame
        if frame.f_code.co_flags & _MAY_GO_ON:
            continue
        if any(_holds(value, owned) for value in list(frame.f_locals.values())):
            with contextlib.suppress(RuntimeError):  # It still runs.
                frame.clear()


def _holds(value: Any, owned: set[int]) -> bool:
    if type(value) in (list, tuple):
        return any(id(item) in owned for item in value)
    return id(value) in owned
