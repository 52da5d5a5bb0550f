"""Which OpenSSL the engine encrypts with."""

from __future__ import annotations

import contextlib

__all__ = ["share_openssl"]


def share_openssl() -> None:
    """Loads Python's own, which the engine then finds by its name.

    To be called before anything is encrypted: the engine would load the machine's,
    and a Python that brings another (conda's) could not load its own afterwards.
    """
    with contextlib.suppress(ImportError):  # A Python without one takes the machine's.
        import ssl  # noqa: F401
