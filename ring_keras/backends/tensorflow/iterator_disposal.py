"""Destroys `tf.data` iterators in threads of their own, while this process is in a job.

The destructor of an iterator waits for the thread that tunes its pipeline. TensorFlow
wakes that thread a moment before it marks it as cancelled: one that looks in between
sleeps on, for up to as long as the iterator has lived, at most a minute. On two cores
that befell one iterator in ten. Keras makes one for each epoch, so a rank would stand
still at the end of an epoch, and all others would wait for it.
"""

import contextlib
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ring_keras import keras_internals as internals

__all__ = ["IteratorDisposal"]

_Iterator: Any = internals.OWNED_ITERATOR
_LOOK_S = 0.001
_MOST_LOOKS = 1000


class IteratorDisposal:
    """Of all iterators that this process makes between `begin` and `end`.

    An iterator's owner is its Python object, whose end is noted. Its handle is then
    held here alone, and dropped by a thread.
    """

    def __init__(self) -> None:
        # By the reference's id: what is dead has no other.
        self._kept: dict[int, tuple[weakref.ref[Any], tf.Tensor]] = {}
        # Its put() may be called while the same thread is in another.
        self._dropped: queue.SimpleQueue[tf.Tensor] = queue.SimpleQueue()
        self._create: Callable[..., None] | None = None
        self._has_threads = False
        self._destroying: set[threading.Thread] = set()

    def begin(self) -> None:
        """From now on, iterators that are made are destroyed by threads."""
        if self._create is not None:
            return
        if not self._has_threads:
            self._start_thread()
            self._has_threads = True
        create = self._create = _Iterator._create_iterator

        def create_and_keep(iterator: Any, dataset: tf.data.Dataset) -> None:
            create(iterator, dataset)
            self._keep(iterator)

        _Iterator._create_iterator = create_and_keep

    def end(self) -> None:
        """Those that are made later are none of ours."""
        if self._create is not None:
            _Iterator._create_iterator = self._create
            self._create = None

    def give_up(self, timeout_s: float) -> None:
        """Leaves those that are still in use to their owners.

        Args:
            timeout_s: How long to wait for those that are being destroyed.
        """
        self.end()
        self._kept.clear()
        deadline = time.monotonic() + timeout_s
        for thread in list(self._destroying):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep(self, iterator: Any) -> None:
        handle = internals.private(iterator, internals.ITERATOR_RESOURCE)
        if type(handle) is tf.__internal__.EagerTensor:  # Not in a graph.
            reference = weakref.ref(iterator, self._on_end)
            self._kept[id(reference)] = (reference, handle)

    def _on_end(self, reference: weakref.ref[Any]) -> None:
        """Called in whichever thread collects garbage, so it takes no lock."""
        kept = self._kept.pop(id(reference), None)
        if kept is not None:
            self._dropped.put(kept[1])

    def _start_thread(self) -> None:
        # A daemon: the process may end while TensorFlow waits.
        name = "ring_keras iterator"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        has_successor = False
        while not has_successor:
            handle = self._dropped.get()
            self._destroying.add(threading.current_thread())
            # This one may have to wait for long.
            with contextlib.suppress(RuntimeError):  # There can be no more threads.
                self._start_thread()
                has_successor = True
            # Its owner drops it just now. `handle` and the argument of getrefcount.
            for _ in range(_MOST_LOOKS):
                if sys.getrefcount(handle) <= 2:
                    break
                time.sleep(_LOOK_S)
            del handle
            self._destroying.discard(threading.current_thread())
