"""How fast tensors are packed and unpacked, beside a plain copy; prints Markdown.

Each line is the median of some rounds. In a round the work and a cudaMemcpyAsync
from device to device that moves as many bytes take turns, many times each, timed by
the device's own events. `--quick` is to see that it runs, on tiny tensors.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT_DIR = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT_DIR / "tests"))

from support.gpu_memory import GpuArray, Stream, call  # noqa: E402
from support.tensors import numpy_dtype  # noqa: E402

from ring_keras import _native  # noqa: E402

DEVICE_TO_DEVICE = 3
SHAPES = ROOT_DIR / "benchmarks" / "data" / "resnet50.txt"
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Work:
    """Something to time.

    Attributes:
        title: For people.
        nbytes: Read and written.
        start: Gives it to the stream.
    """

    title: str
    nbytes: int
    start: Callable[[], None]


class Bench:
    """Buffers large enough for every work, and the clock."""

    def __init__(self, largest: int, repeats: int, rounds: int) -> None:
        self.stream = Stream(0)
        self.source = GpuArray(self.stream, (largest,), np.uint8)
        self.target = GpuArray(self.stream, (largest,), np.uint8)
        # Memory that is all alike may be faster.
        self.source.write(
            np.random.default_rng(1).integers(256, size=largest, dtype=np.uint8)
        )
        self.repeats = repeats
        self.rounds = rounds
        self._events = [self._new_event(), self._new_event()]

    def copied(
        self,
        title: str,
        counts: list[int],
        from_dtype: str,
        to_dtype: str,
        scale: float = 1.0,
        *,
        align: int = 16,
        unpack: bool = False,
    ) -> Work:
        """Tensors to their places in a fusion buffer, or back.

        Tensors begin at multiples of 256 bytes, as TensorFlow's do; places at
        multiples of `align` elements.
        """
        from_size = numpy_dtype(from_dtype).itemsize
        to_size = numpy_dtype(to_dtype).itemsize
        steps = (align * from_size, 256) if unpack else (256, align * to_size)
        rows = []
        start = place = 0
        for count in counts:
            rows.append(
                (self.source.address + start, self.target.address + place, count)
            )
            start += _rounded_up(count * from_size, steps[0])
            place += _rounded_up(count * to_size, steps[1])
        assert max(start, place) <= self.source.nbytes
        segments = np.array(rows, np.uint64)
        return Work(
            title,
            sum(counts) * (from_size + to_size),
            lambda: _native.copy_scaled(
                0, self.stream.handle, from_dtype, to_dtype, scale, segments
            ),
        )

    def summed(self, title: str, pieces: int, count: int) -> Work:
        return Work(
            title,
            (pieces + 1) * count * 2,
            lambda: _native.sum_pieces(
                0,
                self.stream.handle,
                "bfloat16",
                self.source.address,
                pieces,
                count,
                1.0,
                self.target.address,
            ),
        )

    def plain_copy(self, nbytes: int) -> None:
        """Reads and writes `nbytes` together."""
        call(
            "cudaMemcpyAsync",
            ctypes.c_void_p(self.target.address),
            ctypes.c_void_p(self.source.address),
            ctypes.c_size_t(nbytes // 2),
            DEVICE_TO_DEVICE,
            ctypes.c_void_p(self.stream.handle),
        )

    def line(self, work: Work) -> str:
        ours, copies = [], []
        for _ in range(self.rounds):
            ours.append(self._seconds(work.start))
            copies.append(self._seconds(lambda: self.plain_copy(work.nbytes)))
        ratios = [copy / own for copy, own in zip(copies, ours, strict=True)]
        own, copy = float(np.median(ours)), float(np.median(copies))
        return (
            f"| {work.title} | {work.nbytes / 1e6:.1f} | {own * 1e6:.1f} "
            f"| {work.nbytes / own / 1e9:.0f} | {work.nbytes / copy / 1e9:.0f} "
            f"| **{np.median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f}) |"
        )

    def _seconds(self, start: Callable[[], None]) -> float:
        """Of one of many, back to back."""
        start()
        # The device is busy with this meanwhile, so that it never waits for the
        # host between two of them.
        for _ in range(2):
            self.plain_copy(2 * self.source.nbytes)
        self._record(self._events[0])
        for _ in range(self.repeats):
            start()
        self._record(self._events[1])
        self.stream.synchronize()
        milliseconds = ctypes.c_float()
        call("cudaEventElapsedTime", ctypes.byref(milliseconds), *self._events)
        return milliseconds.value / 1e3 / self.repeats

    def _record(self, event: ctypes.c_void_p) -> None:
        call("cudaEventRecord", event, ctypes.c_void_p(self.stream.handle))

    @staticmethod
    def _new_event() -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        call("cudaEventCreateWithFlags", ctypes.byref(event), 0)
        return event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    _native.set_cuda_library_path(os.environ.get("RING_KERAS_CUDA_LIBRARY_PATH", ""))
    _native.prepare_device(0)

    shrink = 4096 if quick else 1
    largest = (4 if quick else 1024) * MEGABYTE
    bench = Bench(largest, 2 if quick else 20, 2 if quick else 11)
    print("| work | MB moved | us | GB/s | plain copy GB/s | ratio (range) |")
    print("|---|---|---|---|---|---|")
    for work in _works(bench, shrink):
        print(bench.line(work), flush=True)


def _works(bench: Bench, shrink: int) -> list[Work]:
    resnet = [max(1, count // shrink) for count in _resnet()]
    odd = [count + 1 for count in resnet]
    bucket = [8 * MEGABYTE // 4 // shrink, *[1000] * 200]
    single = [64 * MEGABYTE // shrink]
    half = [25 * MEGABYTE // 4 // shrink]
    copied = bench.copied
    return [
        copied("pack 161 float32, ResNet-50", resnet, "float32", "float32"),
        copied("same, scaled", resnet, "float32", "float32", 0.5),
        copied("unpack, scaled", resnet, "float32", "float32", 0.5, unpack=True),
        copied("pack to bfloat16, scaled", resnet, "float32", "bfloat16", 0.5),
        copied("unpack from bfloat16", resnet, "bfloat16", "float32", unpack=True),
        copied("pack to float16, scaled", resnet, "float32", "float16", 0.5),
        copied("unpack from float16", resnet, "float16", "float32", unpack=True),
        copied("pack 161 bfloat16, scaled", resnet, "bfloat16", "bfloat16", 0.5),
        copied("pack without gaps, odd sizes", odd, "float32", "float32", align=1),
        copied("same, to bfloat16", odd, "float32", "bfloat16", align=1),
        copied("pack 8 MiB and 200 of 4 KB", bucket, "float32", "float32", 0.5),
        copied("pack one of 256 MiB", single, "float32", "float32", 0.5),
        copied("pack one of 25 MiB", half, "float32", "float32", 0.5),
        copied("pack float64, scaled", single, "float64", "float64", 0.5),
        copied("pack int32, scaled", single, "int32", "int32", 0.5),
        bench.summed("sum 8 pieces of bfloat16, 8 MiB each", 8, single[0] // 16),
    ]


def _resnet() -> list[int]:
    lines = [line for line in SHAPES.read_text().splitlines() if line[0] != "#"]
    return [int(np.prod([int(n) for n in line.split("x")])) for line in lines]


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step


if __name__ == "__main__":
    main()
