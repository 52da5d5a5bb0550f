"""A `fit` that hangs is explained by what its ranks wrote."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support import run_ranks
from support.processes import wait_until

import ring_keras as ring
from ring_keras.monitoring.analyze.trace_file import read_traces
from ring_keras.monitoring.analyze.verdict import explain

HANGS_AT = 3


class Hangs(keras.callbacks.Callback):
    """Stays in a batch until every rank has written where it is."""

    def __init__(self, trace_dir: str) -> None:
        super().__init__()
        self._trace_dir = Path(trace_dir)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == HANGS_AT:
            wait_until(self._all_have_written, "both ranks have written")
            for rank in (0, 1):
                name = f"rank{rank}.trace"
                shutil.copy(self._trace_dir / name, self._trace_dir / "then" / name)

    def _all_have_written(self) -> bool:
        # Stacks come last.
        paths = [self._trace_dir / f"rank{rank}.trace" for rank in (0, 1)]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        return all("most recent call first" in text for text in texts)


def fits(trace_dir: str) -> None:
    ring.init()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    callbacks: list[Any] = [ring.callbacks.BroadcastGlobalVariables()]
    callbacks += [Hangs(trace_dir)] if ring.rank() == 1 else []
    x = np.ones((32, 3), np.float32)
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks)


@pytest.mark.slow
def test_a_fit_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "then").mkdir()
    env = {"RING_KERAS_TRACE_DIR": str(tmp_path), "RING_KERAS_STALL_TIMEOUT_S": "2"}
    run_ranks(fits, 2, env=env, args=(str(tmp_path),))

    sentence = explain(read_traces(tmp_path / "then"))

    assert re.fullmatch(
        # Maybe in a comprehension, which has a frame of its own until Python 3.12.
        r"Rank 1 stands in \w+\.py:\d+ \((\w+|<\w+>)\); rank 0 is in allreduce "
        r"'gradients/bucket0' of step \d\.",
        sentence,
    ), sentence
