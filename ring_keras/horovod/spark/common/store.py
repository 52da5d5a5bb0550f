"""`horovod.spark.common.store`: where an estimator's runs lie."""

from __future__ import annotations

from ring_keras.spark.store import Store

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]


def FilesystemStore(prefix_path: str) -> Store:  # noqa: N802  A class in Horovod.
    """`Store.create`, which finds out by itself what kind of path that is."""
    return Store.create(prefix_path)


DBFSLocalStore = HDFSStore = LocalStore = FilesystemStore
