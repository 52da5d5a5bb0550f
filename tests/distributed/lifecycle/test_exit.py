"""A rank's process ends, whatever its datasets still do."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
import time
import types

import pytest
from support import engine_only
from support.engine_only import WITHOUT_TENSORFLOW
from support.run_ranks import run_ranks

from ring_keras import _native


@pytest.fixture(autouse=True)
def whole_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks end as every Python process does."""
    monkeypatch.setenv("TESTS_WHOLE_END", "1")


def leave_a_generator_behind(
    how_long_s: float,
    interrupted: bool = False,
    timed: bool = False,
    failed: bool = False,
) -> None:
    import ring_keras as ring

    ring.init()
    import tensorflow as tf

    begun = threading.Event()

    def numbers():
        yield 0
        begun.set()
        time.sleep(how_long_s)
        yield 1

    dataset = tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int32)
    )
    iterator = iter(dataset.prefetch(1))
    assert int(next(iterator)) == 0
    assert begun.wait(30)
    # In a circle, which the interpreter collects when it ends, and not before.
    gc.set_threshold(1_000_000)
    circle = types.SimpleNamespace(iterator=iterator)
    if timed:  # As `fit` does.
        from ring_keras.training.timed_iterator import timed_iterator

        circle.timed = timed_iterator(iterator)
        assert circle.timed is not iterator
    circle.itself = circle
    if failed:  # As a step does: the frames of its exception have its arguments.
        circle.error = error_of_a_step(iterator)
    del iterator
    if interrupted:
        # What is registered last is called first.
        atexit.register(press_ctrl_c_again_and_again)


def error_of_a_step(iterator) -> Exception:
    import tensorflow as tf

    @tf.function
    def step(data: tf.data.Iterator) -> None:
        assert isinstance(data, tf.data.Iterator)
        tf.debugging.assert_negative(tf.random.uniform(()))

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(iterator)
    return caught.value


def press_ctrl_c_again_and_again() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.005)

    threading.Thread(target=press, daemon=True).start()


# A second is over while the interpreter waits for it; an hour is not.
@pytest.mark.parametrize("how_long_s", [1, pytest.param(3600, marks=pytest.mark.slow)])
def test_ends_while_a_generator_is_in_a_call(how_long_s) -> None:
    run_ranks(leave_a_generator_behind, 1, args=(how_long_s,), timeout_s=60)


def test_ends_when_ctrl_c_is_pressed_again() -> None:
    (outcome,) = run_ranks(
        leave_a_generator_behind, 1, args=(1, True), timeout_s=60, check=False
    )

    assert not outcome.timed_out, outcome.describe()
    assert outcome.signal in (None, signal.SIGINT), outcome.describe()


def test_ends_after_a_fit_had_the_iterator() -> None:
    run_ranks(leave_a_generator_behind, 1, args=(0.5, False, True), timeout_s=60)


def leave_threads_in_calls() -> None:
    engine_only.join()

    def call_without_end() -> None:
        while True:
            _native.stats()

    for _ in range(4):
        threading.Thread(target=call_without_end, daemon=True).start()


def test_ends_while_daemon_threads_come_back_from_calls() -> None:
    """Python has them end where they ask for its lock, which must not abort."""
    (outcome,) = run_ranks(
        leave_threads_in_calls, 1, env=WITHOUT_TENSORFLOW, timeout_s=60, check=False
    )
    assert outcome.returncode == 0, outcome.describe()


def finalize_a_graph() -> None:
    import ring_keras as ring

    ring.init()
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.get_default_graph().finalize()


def test_ends_where_the_graph_is_finalized() -> None:
    (outcome,) = run_ranks(finalize_a_graph, 1, timeout_s=60, check=False)
    assert outcome.returncode == 0, outcome.describe()
    assert "atexit" not in outcome.stderr


@pytest.mark.parametrize(
    "how_long_s", [0.5, pytest.param(3600, marks=pytest.mark.slow)]
)
def test_ends_after_a_step_failed_with_the_iterator(how_long_s) -> None:
    run_ranks(
        leave_a_generator_behind, 1, args=(how_long_s, False, False, True), timeout_s=60
    )
