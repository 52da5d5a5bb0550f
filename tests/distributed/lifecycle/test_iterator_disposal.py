"""An iterator that cannot end yet holds up nobody who drops it."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import tensorflow as tf

import ring_keras as ring

DEADLINE_S = 60.0


class Blocks:
    """A pipeline whose thread waits, from its second item on, until it is released."""

    def __init__(self):
        self.waits = threading.Event()
        self.released = threading.Event()

    def data(self):
        def items():
            yield 0
            self.waits.set()
            assert self.released.wait(DEADLINE_S)
            yield 1

        spec = tf.TensorSpec([], tf.int32)
        return tf.data.Dataset.from_generator(items, output_signature=spec).prefetch(1)

    def begun(self):
        iterator = iter(self.data())
        next(iterator)
        assert self.waits.wait(DEADLINE_S)
        return iterator


def is_destroyed(handle):
    deadline = time.monotonic() + DEADLINE_S
    while handle() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


def in_time(drop):
    """Whether that returns although nothing is released."""
    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(DEADLINE_S / 4)
    return not thread.is_alive()


def dropping_worker(in_cycle):
    first, second = Blocks(), Blocks()
    held = [[first.begun()], [second.begun()]]
    handles = [weakref.ref(each[0]._iterator_resource) for each in held]
    if in_cycle:
        held[0].append(held[0])
        held[1].append(held[1])

    def drop():
        held.clear()
        gc.collect()

    dropped = in_time(drop)
    second.released.set()
    # One that waits keeps no other from being destroyed.
    destroyed = is_destroyed(handles[1])
    first.released.set()
    return dropped, destroyed and is_destroyed(handles[0])


@pytest.mark.parametrize(
    "in_cycle", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_who_drops_an_iterator_does_not_wait_for_it(rank_pool, in_cycle):
    for result in rank_pool(2).run(dropping_worker, args=(in_cycle,)):
        assert result == (True, True)


def threadless_worker():
    iterators = [iter(tf.data.Dataset.range(1)) for _ in range(3)]
    handles = [weakref.ref(each._iterator_resource) for each in iterators]
    # More than there are addresses: from here on no thread can be started.
    before = threading.stack_size(1 << 48)
    try:
        for handle in handles:
            iterators.pop(0)
            assert is_destroyed(handle)
    finally:
        threading.stack_size(before)
    return True


def test_those_are_destroyed_for_which_no_thread_can_be_started(rank_pool):
    assert rank_pool(2).run(threadless_worker) == [True, True]


def memberships_worker():
    def makes():
        return type(iter(tf.data.Dataset.range(1)))._create_iterator.__module__

    inside = makes()
    ring.shutdown()
    outside = makes()
    ring.init()
    return inside.split(".")[0], outside.split(".")[0], makes() == inside


def test_only_iterators_that_are_made_in_a_job_are_destroyed_so(rank_pool):
    expected = ("ring_keras", "tensorflow", True)
    assert rank_pool(2).run(memberships_worker) == [expected] * 2
