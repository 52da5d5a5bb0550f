"""Who lacks an engine is told what to install."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("engine", "package"),
    [("dask", "distributed"), ("ray", "ray"), ("spark", "pyspark")],
)
def test_says_what_to_install(
    engine: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"ring_keras.{engine}", raising=False)

    with pytest.raises(ImportError, match=rf"pip install 'ring-keras\[{engine}\]'"):
        importlib.import_module(f"ring_keras.{engine}")
