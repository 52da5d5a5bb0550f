"""OpenTelemetry's own SDK collects what the ranks measure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.places import PEERS_DIR

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

# The SDK comes after this environment's own packages: some are in both.
SCRIPT = """
import json, pathlib, sys
sys.path.append(sys.argv[1])
import keras, numpy as np
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import ring_keras as ring
reader = InMemoryMetricReader()
ring.monitoring.add_opentelemetry_metrics(MeterProvider([reader]))
assert reader.get_metrics_data() is None  # It is in no job yet.
ring.init()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(ring.DistributedOptimizer("sgd"), "mse")
callbacks = [ring.callbacks.BroadcastGlobalVariables()]
x, y = np.ones((64, 4)), np.ones((64, 1))
model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks)
found = {
    metric.name: [[dict(p.attributes), p.value] for p in metric.data.data_points]
    for of_resource in reader.get_metrics_data().resource_metrics
    for scope in of_resource.scope_metrics
    for metric in scope.metrics
}
pathlib.Path(f"found{ring.rank()}.json").write_text(json.dumps(found))
ring.shutdown()
assert reader.get_metrics_data() is None
"""


def test_each_rank_has_its_metrics(tmp_path: Path) -> None:
    packages = PEERS_DIR / "trackers"
    if not (packages / "opentelemetry").exists():
        pytest.skip("no OpenTelemetry: benchmarks/make_environments.sh trackers")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "ring_keras.launch", "-np", "2"]
    ended = subprocess.run(
        [*launch, sys.executable, str(script), str(packages)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]

    for rank in (0, 1):
        found = json.loads((tmp_path / f"found{rank}.json").read_text())
        value = {}
        parts = ("compute", "input", "wait", "exposed")
        for name in ("steps", "examples", "step", *parts):
            [(attributes, value[name])] = found[f"ring_keras.{name}"]
            assert attributes["rank"] == rank
            assert attributes["host"]
        assert value["steps"] >= 8
        assert value["examples"] == 64
        whole = sum(value[part] for part in parts)
        assert whole == pytest.approx(value["step"])
        for attributes, seconds in found["ring_keras.waited_for"]:
            assert attributes["rank"] == rank
            assert seconds > 0
