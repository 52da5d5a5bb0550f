"""A rank of an elastic `fit`: `python -m support.faults.elastic_rank DIRECTORY CASE`.

On all ranks row i of the weights is how often example i was trained on: gradients are
summed, and all numbers are small integers.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import ring_keras as ring
from ring_keras.config import Config
from ring_keras.job.job import current_job
from ring_keras.lifecycle.elastic_launcher import ElasticLauncher, launcher_of
from support.faults.cases import Case
from support.faults.commit import commit, commit_beside
from support.faults.work import nothing_left

COUNT = 96
EPOCHS = 3
# The epoch, and the step or batch of it, in which the fault comes.
FAULTY_EPOCH = 1
FAULTY_STEP = 2


class Negative(keras.losses.Loss):
    """Whose gradient adds."""

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The less the more."""
        return -y_pred


class Faulty(keras.callbacks.Callback):
    """Has the fault come to this process, if it is the one."""

    def __init__(self, case: Case, directory: str) -> None:
        super().__init__()
        number = int(os.environ["RING_KERAS_RANK"])
        self._case = case
        self._directory = directory
        self._place = case.place if number == case.victim else ""
        forms = case.place == "while a generation forms"
        self._dies_before = forms and number == (case.victim + 1) % case.size
        self._epoch = -1
        self._generation = -1
        self.sizes: list[int] = []  # Of each generation.
        self.went_on_at = 0.0  # In the last of them.
        if self._place == "while a generation forms":
            self._fail_when_it_forms()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Which it is."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Faults of a step."""
        if self._epoch != FAULTY_EPOCH or batch != FAULTY_STEP:
            return
        if self._dies_before:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._place == "before a step":
            commit(self._case, self._directory)
        elif self._place == "in a step":
            commit_beside(self._case, self._directory)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Who is still there."""
        generation = current_job().generation
        if generation != self._generation:
            self._generation = generation
            self.sizes.append(ring.size())
            self.went_on_at = time.monotonic()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Faults of an evaluation."""
        if self._place == "in an evaluation" and self._epoch == FAULTY_EPOCH:
            commit(self._case, self._directory)

    def saved(self) -> None:
        """Faults of one who saves."""
        if self._place == "while saving" and self._epoch == FAULTY_EPOCH:
            commit(self._case, self._directory)

    def _fail_when_it_forms(self) -> None:
        join = ElasticLauncher.join

        def fail_and_join(launcher: ElasticLauncher) -> dict[str, Any]:
            if launcher.has_state:
                commit_beside(self._case, self._directory)
            return join(launcher)

        ElasticLauncher.join = fail_and_join  # type: ignore[assignment,method-assign]


class Saves(keras.callbacks.Callback):
    """The weights, after each epoch."""

    def __init__(self, directory: str, faulty: Faulty) -> None:
        super().__init__()
        self._directory = directory
        self._faulty = faulty

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves them."""
        self.model.save_weights(Path(self._directory, f"{epoch}.weights.h5"))
        self._faulty.saved()


def train(case: Case, directory: str) -> dict[str, Any]:
    """Trains; what there is to say of it."""
    faulty = Faulty(case, directory)
    ring.init()
    x = np.eye(COUNT, dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, np.zeros((COUNT, 1), np.float32)))
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((COUNT,)), layer])
    optimizer = ring.DistributedOptimizer(keras.optimizers.SGD(1.0), op=ring.Sum)
    model.compile(optimizer, Negative(reduction="sum"))
    history = model.fit(
        ring.data.shard(data, seed=1).batch(2),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=ring.data.shard(data, remainder="keep").batch(8),
        callbacks=[
            ring.callbacks.Elastic(),
            ring.callbacks.MetricAverage(),
            ring.callbacks.RootOnly(Saves(directory, faulty)),
            faulty,
        ],
    )
    everything = [*model.weights, *model.optimizer.variables]
    content = b"".join(np.array(variable).tobytes() for variable in everything)
    counts = layer.kernel.numpy().astype(int)
    return {
        "epochs": history.epoch,
        "digest": hashlib.sha256(content).hexdigest(),
        "most": int(counts.max()),
        "left_out": EPOCHS * COUNT - int(counts.sum()),
        "sizes": faulty.sizes,
        "went_on_at": faulty.went_on_at,
    }


def main() -> None:
    """Says what came of it in a file."""
    directory, case = sys.argv[1], Case(**json.loads(sys.argv[2]))
    number = os.environ["RING_KERAS_RANK"]
    launcher_of(Config.from_environment())  # A line that it keeps.
    with nothing_left():
        result = train(case, directory)
    Path(directory, f"end.{number}").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
