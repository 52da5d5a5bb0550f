"""Python's signal handlers run while a collective waits, and may end the wait."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
from support import engine_only, run_ranks
from support.engine_only import WITHOUT_TENSORFLOW
from support.processes import wait_until
from support.variants import variants

from ring_keras import _native

# How long a rank waits before anything is done to it: so long that its wait has
# been left to the engine's thread.
WAITING_S = 0.3


def join() -> int:
    if os.environ.get("TESTS_WITHOUT_TENSORFLOW"):
        return engine_only.join()[0]
    import ring_keras as ring

    ring.init()
    return ring.rank()


def reduce_array(name: str) -> None:
    _native.allreduce(np.ones(10, np.float32), "sum", name)


def gather_array(name: str) -> None:
    _native.allgather(np.ones(10, np.float32), name)


def reduce_tensor(name: str) -> None:
    import ring_keras as ring

    ring.allreduce(np.ones(10, np.float32), name=name)


def reduce_group(name: str) -> None:
    import ring_keras as ring

    ring.grouped_allreduce([np.ones(10, np.float32)] * 2, name=name)


def wait_for(path: Path) -> None:
    wait_until(path.exists, f"the other rank has made {path.name}", 60)


def handlers_return(collective, directory: Path) -> int:
    """Rank 1 enters only after a handler of rank 0 has run often in its wait."""
    calls = []

    def handler(number, frame):
        calls.append(number)
        if len(calls) == 3:
            (directory / "handled").touch()

    if join() == 0:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, WAITING_S, 0.05)
    else:
        wait_for(directory / "handled")
    collective("slow")
    signal.setitimer(signal.ITIMER_REAL, 0)
    collective("usable")
    return len(calls)


@pytest.mark.parametrize(
    ("collective", "env"),
    [
        (gather_array, WITHOUT_TENSORFLOW),
        (reduce_tensor, {}),
        pytest.param(reduce_array, WITHOUT_TENSORFLOW, marks=pytest.mark.slow),
        pytest.param(reduce_group, {}, marks=pytest.mark.slow),
    ],
)
def test_a_handler_runs_and_the_wait_goes_on(collective, env, tmp_path) -> None:
    calls, _ = run_ranks(handlers_return, 2, env=env, args=(collective, tmp_path))
    assert calls >= 3


class TerminatedError(Exception):
    """What a handler raises."""


def handler_raises(collective, number: int, directory: Path) -> str:
    def handler(number, frame):
        raise TerminatedError("told so")

    rank = join()
    collective("warm up")  # What TensorFlow does once is over when the signal comes.
    try:
        if rank == 0:
            signal.signal(number, handler)
            threading.Timer(WAITING_S, os.kill, (os.getpid(), number)).start()
        else:
            wait_for(directory / "raised")
        collective("never")
        collective("next")  # Rank 0's data may have been there already.
    except TerminatedError as error:
        (directory / "raised").touch()
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ended"


@pytest.mark.parametrize(
    ("collective", "number", "env"),
    [
        (reduce_array, signal.SIGTERM, WITHOUT_TENSORFLOW),
        pytest.param(reduce_tensor, signal.SIGINT, {}, marks=pytest.mark.slow),
    ],
)
def test_a_handler_that_raises_ends_the_wait(collective, number, env, tmp_path) -> None:
    interrupted, peer = run_ranks(
        handler_raises, 2, env=env, args=(collective, number, tmp_path)
    )
    assert interrupted == "told so"
    assert "PeerLostError: [RK203] rank 0 (host" in peer
    assert "was interrupted while allreduce 'never' was pending" in peer


def handler_raises_late(collective, directory: Path) -> str:
    """Rank 0's handler runs in its wait, and raises when the wait is over."""

    def handler(number, frame):
        (directory / "handled").touch()
        wait_for(directory / "done")
        raise TerminatedError("told so")

    rank = join()
    collective("warm up")
    try:
        if rank == 0:
            signal.signal(signal.SIGTERM, handler)
            threading.Timer(WAITING_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
            collective("late")
        else:
            wait_for(directory / "handled")
            collective("late")
            (directory / "done").touch()
    except TerminatedError as error:
        return str(error)
    return "ended"


@pytest.mark.parametrize(
    ("collective", "env"),
    [
        (reduce_array, WITHOUT_TENSORFLOW),
        pytest.param(reduce_tensor, {}, marks=pytest.mark.slow),
    ],
)
def test_a_handler_raises_though_the_wait_is_over(collective, env, tmp_path) -> None:
    results = run_ranks(handler_raises_late, 2, env=env, args=(collective, tmp_path))
    assert results == ["told so", "ended"]


def handler_shuts_down(directory: Path) -> bool:
    def handler(number, frame):
        _native.shutdown("told to end")

    if join() == 0:
        signal.signal(signal.SIGTERM, handler)
        threading.Timer(WAITING_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        wait_for(directory / "left")
    with pytest.raises(RuntimeError, match="shutdown"):
        reduce_array("never")
    (directory / "left").touch()
    return _native.is_initialized()


def test_a_handler_may_leave_the_job(tmp_path) -> None:
    left, _ = run_ranks(handler_shuts_down, 2, env=WITHOUT_TENSORFLOW, args=(tmp_path,))
    assert not left


def handler_calls(held: str, called: str, directory: Path) -> str:
    """Rank 0's handler calls one thing while its thread waits in another."""
    calls = {
        "collective": lambda: reduce_array("held"),
        "add": lambda: _native.add_communicator([1]),
        "remove": lambda: _native.remove_communicator(1),
        "tune": lambda: _native.set_tuning({}),
        "rejoin": lambda: (_native.shutdown("to rejoin"), engine_only.join()),
    }
    said = []

    def handler(number, frame):
        try:
            calls[called]()
        except ValueError as error:
            said.append(str(error))
        (directory / "called").touch()

    rank = join()
    if rank == 0:
        signal.signal(signal.SIGTERM, handler)
        threading.Timer(WAITING_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        wait_for(directory / "called")
    if called == "rejoin":
        try:
            calls[held]()
        except RuntimeError as error:
            assert "shutdown" in str(error)
        else:  # What the other rank had sent before it left.
            assert rank == 1
    else:
        calls[held]()
        reduce_array("usable")
    return "".join(said)


@pytest.mark.parametrize(
    ("held", "called", "name"),
    variants(
        [("add", "add", "add_process_set()"), ("collective", "rejoin", "init()")],
        [("add", "remove", "remove_process_set()"), ("tune", "tune", "set_tuning()")],
    ),
)
def test_a_handler_cannot_call_what_its_thread_is_in(
    held, called, name, tmp_path
) -> None:
    said, _ = run_ranks(
        handler_calls, 2, env=WITHOUT_TENSORFLOW, args=(held, called, tmp_path)
    )
    assert said.startswith(f"[RK135] a signal handler called {name} while")


class OfOneRank:
    """What a rank's training data do before each batch; rank 1's may be slow."""

    def __init__(self, rank: int, wanted: Path, slow_batch: int) -> None:
        self.rank = rank
        self.wanted = wanted
        self.slow_batch = slow_batch

    def __call__(self):
        for batch in range(8):
            if batch == self.slow_batch and self.rank == 1:
                self.wanted.with_name("waits").touch()
                wait_for(self.wanted)
            yield np.ones([2, 3], np.float32), np.ones([2, 1], np.float32)


def fit(rank: int, wanted: Path, slow_batch: int, *callbacks) -> None:
    """Fits; rank 1 comes to that step only when it is told so."""
    import keras
    import tensorflow as tf

    import ring_keras as ring

    traces = []

    class Counted(keras.Sequential):
        def train_step(self, data):
            traces.append(threading.current_thread().name)
            return super().train_step(data)

    data = tf.data.Dataset.from_generator(
        OfOneRank(rank, wanted, slow_batch),
        output_signature=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])),
    )
    model = Counted([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    model.fit(
        data,
        steps_per_epoch=8,
        verbose=0,
        callbacks=[ring.callbacks.BroadcastGlobalVariables(), *callbacks],
    )
    assert set(traces) == {"MainThread"}, traces


def fit_handles(directory: Path) -> int:
    calls = []

    def handler(number, frame):
        calls.append(number)
        if len(calls) == 3:
            (directory / "handled").touch()

    rank = join()
    if rank == 0:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 1, 0.05)
    fit(rank, directory / "handled", 4)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return len(calls)


def interrupted_fit(directory: Path, slow_batch: int) -> str:
    import keras

    def press() -> None:
        kill = (os.getpid(), signal.SIGINT)
        threading.Timer(WAITING_S, os.kill, kill).start()

    def press_when_rank_1_waits() -> None:
        wait_for(directory / "waits")
        press()

    def handler(number, frame):
        # Where Keras and TensorFlow swallow what is raised.
        names = {inner.f_code.co_name for inner, _ in traceback.walk_stack(frame)}
        if names & {"pythonify_logs", "__len__"}:
            return press()
        return signal.default_int_handler(number, frame)

    class Interrupt(keras.callbacks.Callback):
        """In the last call before this rank waits for that step of the other one."""

        def on_epoch_begin(self, epoch, logs=None):
            self.on_train_batch_end(-1)

        def on_train_batch_end(self, batch, logs=None):
            if rank == 0 and batch == slow_batch - 1:
                threading.Thread(target=press_when_rank_1_waits).start()

    rank = join()
    signal.signal(signal.SIGINT, handler)
    try:
        fit(rank, directory / "raised", slow_batch, Interrupt())
    except KeyboardInterrupt:
        (directory / "raised").touch()
        return "KeyboardInterrupt"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ended"


def test_a_handler_runs_in_fit(tmp_path) -> None:
    calls, _ = run_ranks(fit_handles, 2, args=(tmp_path,))
    assert calls >= 3


@pytest.mark.parametrize("slow_batch", [4, pytest.param(0, marks=pytest.mark.slow)])
def test_ctrl_c_ends_fit(slow_batch, tmp_path) -> None:
    interrupted, peer = run_ranks(interrupted_fit, 2, args=(tmp_path, slow_batch))
    assert interrupted == "KeyboardInterrupt"
    assert "PeerLostError: [RK203] rank 0 (host" in peer
    assert "was interrupted while" in peer
