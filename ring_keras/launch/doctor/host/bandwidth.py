"""How fast this host moves bytes, and what an allreduce can take from that."""

from __future__ import annotations

import ctypes
import threading
import time

from ring_keras.launch.control_group import usable_cores
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.memory import spare_nbytes
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape
from ring_keras.launch.doctor.speed import measure
from ring_keras.launch.doctor.speed_server import SpeedServer

__all__ = ["check"]

_GB = 10**9
# Of a thread, larger than any cache that a core has for itself; of all threads, no
# more than this part of what is free.
_COPY_NBYTES = 64 << 20
_LEAST_COPY_NBYTES = 1 << 20
_PART = 8
_COPY_S = 0.4
_LOOPBACK_S = 0.3
_GRADIENTS_NBYTES = 10**8


def check(job: JobShape) -> list[Finding]:
    """Memory, and TCP over loopback."""
    return [_memory(job), _loopback()]


def _memory(job: JobShape) -> Finding:
    rate = _copy_rate(min(job.local_size, usable_cores()))
    measured = {"copied_bytes_per_s": rate}
    text = f"cores copy {rate / _GB:.1f} GB/s together"
    if job.local_size > 1 and job.hosts == 1:
        # Each rank's tensor is written where the others see it, and its part of the
        # sum is brought to it from the others and back: 2 (n - 1) / n of it, n times.
        expected = rate / (2 * (job.local_size - 1))
        measured["allreduce_bytes_per_s"] = expected
        milliseconds = 1000 * _GRADIENTS_NBYTES / expected
        text += (
            f"; {job.local_size} ranks move 2(n-1)/n of a tensor each, so allreduces "
            f"reach {expected / _GB:.1f} GB/s at best: 100 MB in {milliseconds:.0f} ms"
        )
    return Finding("memory bandwidth", State.OK, text, measured=measured)


def _copy_rate(threads: int) -> float:
    """Bytes that so many threads copy in a second, each from memory to memory."""
    room = spare_nbytes() // _PART // (2 * threads)
    nbytes = max(_LEAST_COPY_NBYTES, min(_COPY_NBYTES, room))
    done: list[int] = []
    start = threading.Barrier(threads + 1)

    def copy() -> None:
        source, target = (ctypes.create_string_buffer(nbytes) for _ in range(2))
        for buffer in (source, target):
            ctypes.memset(buffer, 1, nbytes)  # So that the pages are there.
        start.wait()
        end = time.perf_counter() + _COPY_S
        copied = 0
        while time.perf_counter() < end:
            ctypes.memmove(target, source, nbytes)  # Without Python's lock.
            copied += nbytes
        done.append(copied)

    workers = [threading.Thread(target=copy) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def _loopback() -> Finding:
    title = "transport tcp"
    try:
        with SpeedServer(["127.0.0.1"]) as server:
            host, port = server.addresses[0]
            speed = measure(
                host,
                port,
                server.key,
                streams=config().tcp_streams,
                lasts_s=_LOOPBACK_S,
            )
    except OSError as error:
        return Finding(
            title,
            State.FAILURE,
            f"127.0.0.1: {error}",
            expected="connections over loopback",
            fix="ip link set lo up",
        )
    return Finding(
        title,
        State.OK,
        f"loopback moves {speed.bytes_per_s / _GB:.1f} GB/s, and a message and its "
        f"answer take {speed.round_trip_s * 1e6:.0f} us",
        measured=speed.measured(),
    )
