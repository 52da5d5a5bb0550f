"""Rows of Parquet files and messages of Kafka cannot be divided anew."""

from __future__ import annotations

import pytest
from support.ringrun import Ringrun

pytest.importorskip("pyarrow", reason="needs the extra parquet")

_REFUSED = """
import keras, numpy as np, pyarrow as pa, pyarrow.parquet as pq
import tensorflow as tf
import ring_keras as ring

ring.init()
path = here / "data.parquet"
pq.write_table(pa.table({"x": np.arange(8.0)}), path)
whole = ring.data.shard(tf.data.Dataset.from_tensors(([1.0], [1.0])))


def pairs(seed):
    rows = ring.data.shard_parquet(path, seed=seed)
    return rows.map(lambda row: ([row["x"]], [row["x"]])).batch(2)


said = []
for data, validation in (
    (pairs(1), None),
    (pairs(None), None),
    (whole.batch(1), pairs(1)),
    (whole.batch(1), pairs(None)),
):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    try:
        model.fit(
            data, validation_data=validation, verbose=0,
            callbacks=[ring.callbacks.Elastic()],
        )
    except ValueError as error:
        said.append(str(error))
try:
    ring.data.shard_kafka("t", here / "offsets", batch_size=1, config={}, resume=None)
except ValueError as error:
    said.append(str(error))
note("results", "\\n".join(said))
"""


@pytest.mark.slow
def test_elastic_refuses_them(ringrun: Ringrun) -> None:
    finished = ringrun.finish(ringrun.start(_REFUSED, "--min-np", "1", size=1), 120)

    assert finished.returncode == 0, finished.stderr.decode()[-6000:]
    results = ringrun.noted("results").splitlines()
    assert len(results) == 5
    for said in results[:2]:
        assert "divides what is left of an epoch anew" in said
        assert "was not divided by it" in said
    for said in results[2:4]:
        assert "divides validation_data anew" in said
    assert "needs a fixed number of ranks" in results[4]
