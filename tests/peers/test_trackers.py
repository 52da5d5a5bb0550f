"""MLflow's and Weights & Biases' own callbacks write what all ranks measure."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.places import PEERS_DIR

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

# The trackers come after this environment's own packages: some are in both.
SCRIPT = """
import sys
sys.path.append(sys.argv[1])
import keras, numpy as np
import ring_keras as ring
ring.init()
{tracker}
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(ring.DistributedOptimizer("sgd"), "mse")
callbacks = [
    ring.callbacks.BroadcastGlobalVariables(),
    ring.callbacks.MetricAverage(),
    ring.callbacks.RingMetrics(),
    ring.callbacks.RootOnly(callback),
]
x, y = np.ones((64, 4)), np.ones((64, 1))
model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
{after}
"""
MLFLOW = """
import mlflow.keras
mlflow.set_tracking_uri("sqlite:///runs.db")
callback = mlflow.keras.MlflowCallback()
"""
WANDB = """
import wandb
from wandb.integration.keras import WandbMetricsLogger
if ring.rank() == 0:
    wandb.init(project="ring", mode="offline")
callback = WandbMetricsLogger() if ring.rank() == 0 else keras.callbacks.Callback()
"""
SUMMARY = """
import json, pathlib
if ring.rank() == 0:
    text = json.dumps(dict(wandb.run.summary), default=str)
    pathlib.Path("summary.json").write_text(text)
"""


def train(directory: Path, tracker: str, after: str = "") -> None:
    packages = PEERS_DIR / "trackers"
    if not packages.exists():
        pytest.skip("no trackers: benchmarks/make_environments.sh trackers")
    script = directory / "train.py"
    script.write_text(SCRIPT.format(tracker=tracker, after=after))
    launch = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
    env = os.environ | {"HOME": str(directory), "WANDB_DIR": str(directory)}
    ended = subprocess.run(
        [*launch, sys.executable, str(script), str(packages)],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_mlflow_has_the_metrics_of_all_ranks_once(tmp_path: Path) -> None:
    train(tmp_path, MLFLOW)

    with sqlite3.connect(tmp_path / "runs.db") as database:
        rows = database.execute("select key, step, value from metrics").fetchall()
        (runs,) = database.execute("select count(*) from runs").fetchone()
    assert runs == 1
    values = {(key, step): value for key, step, value in rows}
    assert len(values) == len(rows)
    for epoch in range(3):
        assert values["loss", epoch] > 0
        parts = ("compute_s", "input_s", "wait_s", "exposed_s")
        whole = sum(values[f"ring/{part}", epoch] for part in parts)
        assert whole == pytest.approx(values["ring/duration_s", epoch], rel=1e-3)
        assert values["ring/examples_per_s/rank_1", epoch] > 0


def test_weights_and_biases_has_the_metrics_of_all_ranks(tmp_path: Path) -> None:
    train(tmp_path, WANDB, SUMMARY)

    values = json.loads((tmp_path / "summary.json").read_text())
    assert values["epoch/epoch"] == 2
    assert values["epoch/ring/duration_s"] > 0
    assert values["epoch/ring/examples_per_s/rank_1"] > 0
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"epoch/ring/duration_s" in log.read_bytes()
