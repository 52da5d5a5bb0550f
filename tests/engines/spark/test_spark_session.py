"""Without a session."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engines
pytest.importorskip("pyspark", reason="`make test-engines`")


def test_it_needs_a_session() -> None:
    import ring_keras.spark

    with pytest.raises(RuntimeError, match=r"SparkSession\.builder\.getOrCreate"):
        ring_keras.spark.run(print)
