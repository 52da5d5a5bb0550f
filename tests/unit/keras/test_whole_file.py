"""Files that appear whole, past the page cache or through it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ring_keras.callbacks.backup_directory import LocalDirectory
from ring_keras.callbacks.part_copy import PartCopy
from ring_keras.training.whole_file import write_whole

MIB = 1 << 20
PAGE = mmap.PAGESIZE
AROUND = (-PAGE, -1, 0, 1, PAGE - 1, PAGE, PAGE + 1)


def content_of(nbytes: int, begin: int = 0) -> memoryview:
    """Any bytes, `begin` bytes behind the beginning of a page."""
    memory = np.frombuffer(mmap.mmap(-1, begin + nbytes + 1), np.uint8)
    content = memory[begin : begin + nbytes]
    content[:] = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    return content.data


def require_written(directory: Path, content: memoryview) -> None:
    """In place of what was there, and nothing beside it."""
    path = directory / "part"
    path.write_bytes(b"before" * MIB)
    write_whole(path, content, unfinished="unfinished")

    assert path.read_bytes() == content
    assert not (directory / "unfinished").exists()


def require_refused(directory: Path, content: memoryview) -> OSError:
    """What was there still is, and nothing beside it."""
    path = directory / "part"
    path.write_bytes(b"before")
    with pytest.raises(OSError) as caught:
        write_whole(path, content, unfinished="unfinished")

    assert path.read_bytes() == b"before"
    assert not os.path.lexists(directory / "unfinished")
    return caught.value


@pytest.mark.parametrize("begin", [0, 1, 512])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("nbytes", [PAGE, MIB, 16 * MIB])
def test_every_size_from_any_memory(tmp_path, nbytes, around, begin):
    require_written(tmp_path, content_of(nbytes + around, begin))


def test_other_contents(tmp_path):
    numbers = np.arange(MIB, dtype=np.float32)
    for content in (b"", memoryview(b""), b"small", b"large" * MIB, numbers.data):
        write_whole(tmp_path / "of" / "it", content, unfinished="unfinished")

        assert (tmp_path / "of" / "it").read_bytes() == bytes(content)


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize(
    "most", [[MIB, 3 * PAGE, 512, PAGE, 1], [2 * PAGE], [1], [17 * MIB]]
)
def test_calls_that_write_less_than_they_are_given(tmp_path, monkeypatch, most):
    """As the kernel may have it; past the page cache only from pages' beginnings."""
    real, limits = os.write, itertools.chain(most, itertools.repeat(3 * MIB))
    wrong = []

    def write(descriptor: int, data: memoryview) -> int:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        if is_direct(descriptor) and position % PAGE:
            wrong.append(position)
        return real(descriptor, data[: next(limits)])

    content = content_of(20 * MIB + 7)
    monkeypatch.setattr(os, "write", write)
    write_whole(tmp_path / "part", content, unfinished="unfinished")
    monkeypatch.undo()

    assert (tmp_path / "part").read_bytes() == content
    assert wrong == []


@contextlib.contextmanager
def mounted(directory: Path, *arguments: str) -> Iterator[Path]:
    directory.mkdir()
    command = ["mount", *arguments, str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"cannot be done here: {' '.join(command)}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture
def ramfs(tmp_path):
    """It has nothing but the page cache."""
    with mounted(tmp_path / "ramfs", "-t", "ramfs", "ramfs") as directory:
        yield directory


@pytest.fixture
def overlay(tmp_path, ramfs):
    """It says so not before the first write."""
    for name in ("lower", "upper", "work"):
        (ramfs / name).mkdir()
    layers = f"lowerdir={ramfs}/lower,upperdir={ramfs}/upper,workdir={ramfs}/work"
    options = ("-t", "overlay", "-o", layers, "overlay")
    with mounted(tmp_path / "overlay", *options) as directory:
        yield directory


@pytest.mark.parametrize("refuses", ["ramfs", "overlay"])
@pytest.mark.parametrize("around", AROUND)
def test_where_nothing_goes_past_the_page_cache(request, refuses, around):
    require_written(request.getfixturevalue(refuses), content_of(17 * MIB + around))


def test_a_full_device(tmp_path):
    (tmp_path / "unfinished").symlink_to("/dev/full")
    error = require_refused(tmp_path, content_of(2 * MIB))

    assert error.errno == errno.ENOSPC


def test_a_full_disk(tmp_path):
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, 8 * MIB)
    if subprocess.run(["mkfs.ext4", "-q", image], capture_output=True).returncode:
        pytest.skip("there is no mkfs.ext4 here")
    with mounted(tmp_path / "disk", "-o", "loop", str(image)) as directory:
        error = require_refused(directory, content_of(17 * MIB + 1))
        assert error.errno == errno.ENOSPC
        content = content_of(MIB + 1)
        write_whole(directory / "part", content, unfinished="unfinished")

        assert (directory / "part").read_bytes() == content


@pytest.mark.parametrize("limit", [1000, PAGE, MIB + 1000, 16 * MIB, 17 * MIB + 512])
def test_a_file_that_may_not_be_so_large(tmp_path, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    content = content_of(18 * MIB)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        error = require_refused(tmp_path, content)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert error.errno == errno.EFBIG


def cached_pages(path: Path) -> int:
    """How many of a file's pages are in the page cache."""
    nbytes = path.stat().st_size
    seen = (ctypes.c_ubyte * -(-nbytes // PAGE))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), nbytes) as pages:
        first = ctypes.c_char.from_buffer(pages)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(nbytes), seen)
        del first
    assert not failed
    return sum(page & 1 for page in seen)


@pytest.fixture
def direct_directory(tmp_path):
    """Where what is written by `O_DIRECT` is not in the page cache."""
    path = tmp_path / "tried"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        try:
            os.write(descriptor, content_of(MIB))
        finally:
            os.close(descriptor)
    except OSError as error:
        pytest.skip(f"the file system has no O_DIRECT: {error}")
    if cached_pages(path):
        pytest.skip("the file system has O_DIRECT through the page cache")
    return LocalDirectory(tmp_path)


def test_a_part_goes_past_the_page_cache(direct_directory):
    variables = [tf.ones([5, MIB]), tf.ones([3])]
    copy = PartCopy([tf.Variable(value) for value in variables], b"its end")
    content = copy.take()
    direct_directory.write("step.part", content)
    path = direct_directory.directory / "step.part"

    # What is no whole page, at the end.
    assert cached_pages(path) <= 1
    assert path.read_bytes() == content
