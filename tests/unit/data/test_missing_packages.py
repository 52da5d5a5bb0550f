"""What lacks an optional package says which, and how to install it."""

from __future__ import annotations

import sys

import pytest

import ring_keras as ring


@pytest.fixture(autouse=True)
def without_packages(monkeypatch):
    packages = {"fsspec", "pyarrow"}
    # Other tests may have brought them, with modules that stay.
    brought = {name for name in sys.modules if name.partition(".")[0] in packages}
    for name in packages | brought:
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("arrow_columns", "find_files", "table_files"):
        monkeypatch.delitem(sys.modules, f"ring_keras.data.{module}", raising=False)
    ring.init()
    yield
    ring.shutdown()


def test_parquet_needs_pyarrow():
    with pytest.raises(ImportError, match=r'needs pyarrow.*"ring-keras\[parquet\]"'):
        ring.data.shard_parquet("data.parquet")


def test_urls_need_fsspec():
    with pytest.raises(ImportError, match=r"'s3://bucket/\*' needs the package fsspec"):
        ring.data.shard_files("s3://bucket/*")
