"""Joining a job, and leaving it."""

import atexit
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ring_keras import _native, autotune
from ring_keras._causes import in_one_line
from ring_keras.config import Config, keras_backend
from ring_keras.errors import (
    CommunicationError,
    PeerLostError,
    RankMismatchError,
    RingKerasError,
    code_of,
)
from ring_keras.job.gathering import gather_texts
from ring_keras.job.job import (
    Job,
    begin_job,
    current_job,
    end_job,
    job_or_none,
)
from ring_keras.job.process_set import ProcessSet, add_missing_process_sets
from ring_keras.job.topology import is_initialized
from ring_keras.lifecycle.elastic_launcher import (
    NoGenerationError,
    is_late,
    launcher_of,
)
from ring_keras.lifecycle.flight_recorder import (
    begin_flight_recorder,
    end_flight_recorder,
)
from ring_keras.lifecycle.reporter import begin_reports, end_reports
from ring_keras.lifecycle.side import side_of_process
from ring_keras.monitoring.background_gather import end_gathers
from ring_keras.monitoring.timeline.whole_job import begin_whole_job, end_timeline
from ring_keras.schedulers import store_options

__all__ = ["init", "shutdown"]


def init(process_sets: Sequence[ProcessSet | Sequence[int]] = ()) -> None:
    """Joins the job; returns when every rank has.

    ringrun, srun, mpirun or a similar program has started the ranks of the job.
    Without such a program, this process is a job of its own. A second call before
    `shutdown()` only adds new process sets. After `shutdown()`, a call joins the
    job's next generation, once every rank has left the last one. Then add process
    sets again, trace functions again, and compile models again (unless a callback of
    `ring_keras.callbacks` does so). A call that fails leaves nothing behind, on any
    rank.

    With several ranks on machines with GPUs, each rank gets its own GPU. The others
    are hidden from TensorFlow, and memory growth is switched on, unless you have set
    that before. `RING_KERAS_DEVICE` changes this. TensorFlow must not have computed
    anything yet.

    Ranks on the CPUs of one host reduce large tensors in TensorFlow's memory, if
    TensorFlow has computed nothing before this call. Otherwise, and with
    `RING_KERAS_SHARE_TENSORS=0`, they copy them.

    Where Keras's back end is another than TensorFlow, nothing is done for it, and
    neither it nor TensorFlow is loaded.

    Examples:
        >>> ring.init()
        >>> ring.size()
        2

    Args:
        process_sets: Process sets to add, as by `add_process_set`; the same on every
            rank.

    Raises:
        ConfigError: If a `RING_KERAS_*` variable has a wrong value.
        ImportError: If the op library does not fit the installed TensorFlow.
        PeerLostError: If a rank ended, or failed, before all had joined; in an
            elastic job only if too few are left.
        RankMismatchError: If a variable that must be the same on every rank is
            not, or Keras's back end.
        RingKerasError: If there are too few GPUs for the ranks, if only some ranks have
            one, or if ring_keras does not know this release of Keras or TensorFlow.
        CollectiveTimeoutError: If a rank has not joined, or has not left the last
            generation, within `RING_KERAS_INIT_TIMEOUT_S` seconds. In an elastic job
            the others then form a generation without it.
    """
    if is_initialized():
        add_missing_process_sets(process_sets)
        return
    side = side_of_process()
    side.check()
    config = Config.from_environment()
    side.check_settings(config)
    options = config.init_options()
    if config.elastic_socket is None:
        _join(config, options | store_options(config), process_sets)
        return
    side.load()  # Before the others pause for this one.
    unreached_since: float | None = None
    while True:
        try:
            place = launcher_of(config).join()
        except NoGenerationError as error:
            raise PeerLostError(f"[RK211] init(): {error}.") from None
        try:
            _join(config, options | place, process_sets)
            launcher_of(config).note_joined()
            current_job().others_train = is_late()
            return
        except CommunicationError as error:
            # The launcher knows who is left. Whoever has caused this by an error of
            # its own raises that.
            _native.log("info", f"init() begins again: {error}")
        except RingKerasError as error:
            # Hosts that had a network in common may have it again.
            if code_of(error) != "RK114" or not launcher_of(config).has_state:
                raise
            now = time.monotonic()
            unreached_since = unreached_since or now
            if now - unreached_since > config.init_timeout_s:
                raise
            _native.log("info", f"init() begins again: {error}")


def _join(
    config: Config,
    options: dict[str, Any],
    process_sets: Sequence[ProcessSet | Sequence[int]],
) -> None:
    """Joins the generation that the options name."""
    side = side_of_process()
    # First, because nobody should wait for a rank that cannot compute.
    side.load()
    _native.init(**options)
    try:
        job = begin_job(config)
        begin_flight_recorder(config.trace_dir, job.rank)
        if job.size > 1:
            own = [
                job.local_size,
                config.timeline is not None,
                config.check_steps,
                config.check_reductions,
                # As a number; ranks say the name where they differ.
                zlib.crc32(keras_backend().name.encode()),
            ]
            gathered = _native.allgather(np.array([own]), "job/local_size")
            sizes, records, steps, reductions, backends = gathered.T.tolist()
            job.local_sizes = tuple(sizes)
            _require_set_on_all("RING_KERAS_TIMELINE", records)
            _require_equal("RING_KERAS_CHECK_STEPS", steps)
            _require_equal("RING_KERAS_CHECK_REDUCTIONS", reductions)
            if len(set(backends)) > 1:
                names = gather_texts(keras_backend().name, "job/backends")
                _require_equal("Keras's back end (KERAS_BACKEND)", names)
        side.take_device(config, job)
        if config.autotune:
            job.tuned_bucket_bytes = autotune.tune(config)
        add_missing_process_sets(process_sets)
        begin_reports(config.report_pipe, job)
        if config.timeline is not None:
            begin_whole_job(job, Path(config.timeline))
        side.begin(job)
    except BaseException as error:
        # Ranks that are still at it learn why this one is not.
        shutdown(f"its init() failed: {in_one_line(error)}")
        raise
    # Once, however often a process joins a job.
    atexit.unregister(_shutdown_at_exit)
    atexit.register(_shutdown_at_exit)


def shutdown(reason: str = "called ring_keras.shutdown()") -> None:
    """Leaves the job; has no effect if this process is in no job.

    Collectives that are still pending fail. Other ranks that wait for this one
    get a `PeerLostError`.

    Examples:
        >>> ring.shutdown()
        >>> ring.is_initialized()
        False

    Args:
        reason: The reason, which the other ranks' errors quote.
    """
    job = job_or_none()
    try:
        if job is not None:
            end_timeline(job)
    finally:
        _leave(job, reason)


def _leave(job: Job | None, reason: str) -> None:
    try:
        try:
            if job is not None:
                end_reports(job)
        finally:
            _native.shutdown(reason)
    finally:
        if job is not None:
            side_of_process().end()
        end_flight_recorder()
        if job is not None:
            end_gathers(job)
        end_job()


def _require_equal(variable: str, values: Sequence[object]) -> None:
    """Every rank sees the same, so all raise or none."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise RankMismatchError(
                "[RK117] "
                f"{variable} is {values[0]} on rank 0 and {value} on rank {rank}. Set "
                "it to the same on all."
            )


def _require_set_on_all(variable: str, given: Sequence[int]) -> None:
    """Every rank sees the same, so all raise or none."""
    if len(set(given)) > 1:
        ranks = [rank for rank, is_set in enumerate(given) if not is_set]
        raise RankMismatchError(
            "[RK117] "
            f"{variable} is set on some ranks, and not on ranks {ranks}. Set it on "
            "all, or on none."
        )


def _shutdown_at_exit() -> None:
    try:
        # First, because peers may wait for this rank.
        shutdown(_reason_of_exit())
    finally:
        side_of_process().end_process()


def _reason_of_exit() -> str:
    # Python leaves the exception that ends a script there.
    error = getattr(sys, "last_value", None)
    if error is None:
        return "its script ended"
    return f"raised {in_one_line(error)}"
