"""Joining a job, and leaving it."""

import atexit
import importlib
import sys
from collections.abc import Sequence

from ring_keras import _libraries, _native, autotune
from ring_keras.config import Config
from ring_keras.devices.choice import prepare_device
from ring_keras.job import bucket_size
from ring_keras.job.process_set import (
    ProcessSet,
    add_process_set,
    forget_process_sets,
)
from ring_keras.lifecycle.iterators import end_iterators

__all__ = ["init", "shutdown"]

# What a Python function in a dataset may take until its current call is done.
_ITERATORS_END_S = 5.0


def init(process_sets: Sequence[ProcessSet | Sequence[int]] = ()) -> None:
    """Joins the job; returns when every rank has.

    Without a launcher, the job is this process alone. A second call while the
    first is in force does nothing.

    With several ranks on machines with GPUs each rank gets one of its own: the
    others are hidden from TensorFlow, and it takes that one's memory as it needs
    it, unless you have set that before. `RING_KERAS_DEVICE` changes this.
    TensorFlow must not have computed anything yet.

    Args:
        process_sets: Made at once, as `add_process_set` does; the same on every
            rank.

    Raises:
        ConfigError: If a `RING_KERAS_*` variable has a value it cannot take.
        ImportError: If the op library does not fit the installed TensorFlow.
        PeerLostError: If a rank ended before all had joined.
        RankMismatchError: If a variable that must be the same on every rank is
            not.
        RingKerasError: If ranks cannot have a GPU each, or only some can.
        CollectiveTimeoutError: If a rank has not joined within
            `RING_KERAS_INIT_TIMEOUT_S` seconds.
    """
    if not _native.is_initialized():
        config = Config.from_environment()
        options = config.init_options()
        # First, because nobody should wait for a rank that cannot compute.
        _libraries.ops()
        _native.init(**options)
        prepare_device(config)
        bucket_size.set_tuned_bytes(None)
        # Once, however often a process joins a job.
        atexit.unregister(_shutdown_at_exit)
        atexit.register(_shutdown_at_exit)
        if config.autotune:
            autotune.tune(config)
        if "keras" in sys.modules:
            # So that models load that were compiled with our schedules.
            importlib.import_module("ring_keras.schedules")
    for process_set in process_sets:
        if isinstance(process_set, ProcessSet) and process_set.added:
            continue
        add_process_set(process_set)


def shutdown(reason: str = "called ring_keras.shutdown()") -> None:
    """Leaves the job; without effect if this process is in none.

    Collectives that are still pending fail. Other ranks that wait for this one
    get a `PeerLostError`.

    Args:
        reason: Why, as the other ranks are told.
    """
    _native.shutdown(reason)
    forget_process_sets()


def _shutdown_at_exit() -> None:
    # First, because peers may wait for this rank.
    shutdown(_reason_of_exit())
    end_iterators(_ITERATORS_END_S)


def _reason_of_exit() -> str:
    # Python leaves the exception that ends a script there.
    error = getattr(sys, "last_value", None)
    if error is None:
        return "its script ended"
    lines = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {lines[0]}"[:500]
