"""What was trained here is served by TensorFlow and Keras, without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import keras
import numpy as np
import pytest
from support import training

import ring_keras as ring

# Loads both forms where there is no ring_keras, and serves one batch with each.
SERVE = """
import importlib.util, json, sys
assert importlib.util.find_spec("ring_keras") is None
import keras, numpy as np, tensorflow as tf
directory = sys.argv[1]
inputs = np.load(f"{directory}/inputs.npy")
model = keras.saving.load_model(f"{directory}/model.keras")
served = tf.saved_model.load(f"{directory}/saved_model")
signature = served.signatures["serving_default"]
(by_name,) = signature(tf.constant(inputs)).values()
graph = signature.graph.as_graph_def()
nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
json.dump(
    {
        "optimizer": type(model.optimizer).__name__,
        "iterations": int(model.optimizer.iterations),
        "keras": np.asarray(model.predict(inputs, verbose=0)).tolist(),
        "serve": np.asarray(served.serve(inputs)).tolist(),
        "signature": np.asarray(by_name).tolist(),
        "ops": sorted({node.op for node in nodes}),
    },
    sys.stdout,
)
"""


def trains_and_saves(directory: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            ring.layers.SyncBatchNormalization(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.05)
    training.compile_model(model, ring.DistributedOptimizer(optimizer))
    data = ring.data.shard(training.dataset(24)).batch(4)
    model.fit(
        data,
        epochs=2,
        verbose=0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(),
            ring.callbacks.MetricAverage(),
        ],
    )
    if ring.rank() == 0:
        inputs = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6)
        np.save(Path(directory, "inputs.npy"), inputs)
        np.save(Path(directory, "outputs.npy"), model.predict(inputs, verbose=0))
        model.save(Path(directory, "model.keras"))
        model.export(Path(directory, "saved_model"), verbose=False)
    ring.barrier()


@pytest.mark.slow
def test_both_forms_are_served_without_this_package(rank_pool, tmp_path: Path) -> None:
    rank_pool(2).run(trains_and_saves, args=(str(tmp_path),))

    # -S: no .pth file, which is how this environment finds ring_keras.
    ended = subprocess.run(
        [sys.executable, "-S", "-c", SERVE, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr[-4000:]
    served = json.loads(ended.stdout)
    outputs = np.load(tmp_path / "outputs.npy")
    for form in ("keras", "serve", "signature"):
        np.testing.assert_allclose(served[form], outputs, rtol=1e-5, err_msg=form)
    assert (served["optimizer"], served["iterations"]) == ("Adam", 6)
    assert not [
        op for op in served["ops"] if "ring" in op.lower().replace("string", "")
    ]
