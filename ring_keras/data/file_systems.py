"""File systems of URLs: TensorFlow's, and others by the optional package fsspec."""

from typing import IO, Any

import tensorflow as tf

__all__ = ["file_system_of", "matching", "opened"]


def matching(pattern: str) -> list[str]:
    """The names of files that match a pattern, which may be a URL."""
    if _has_tensorflow(pattern):
        return list(map(str, tf.io.gfile.glob(pattern)))
    system, path = file_system_of(pattern)
    return [str(system.unstrip_protocol(name)) for name in system.glob(path)]


def opened(name: str) -> IO[bytes]:
    """A file to read, whose name may be a URL."""
    if _has_tensorflow(name):
        file: IO[bytes] = tf.io.gfile.GFile(name, "rb")
        return file
    system, path = file_system_of(name)
    file = system.open(path, "rb")
    return file


def _has_tensorflow(name: str) -> bool:
    protocol, mark, _ = name.partition("://")
    return not mark or protocol in tf.io.gfile.get_registered_schemes()


def file_system_of(url: str) -> tuple[Any, str]:
    """The file system that a URL is of, and its path there.

    Raises:
        ImportError: If fsspec, or its package for the protocol, is not installed.
        ValueError: If fsspec does not know the protocol.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ImportError(
            "[RK710] "
            f"A URL such as {url!r} needs the package fsspec, and that for its "
            "protocol: s3fs, gcsfs."
        ) from None
    found: tuple[Any, str] = url_to_fs(url)
    found[0].invalidate_cache()  # Others may have written there.
    return found
