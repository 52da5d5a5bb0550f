"""`python -m benchmarks.ray_failures`: a worker killed under Ray, in two ways.

The same training on two ranks, of which one is killed again and again: as the ranks of
`run_elastic`, which go on and get another one, and as the workers of `RingTrainer`, all
of which Ray Train starts anew from the last checkpoint. Run it where Ray is installed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig

import ring_keras.ray as ring_ray

_RANKS = 2
_LOOK_INTERVAL_S = 0.01
_TIMEOUT_S = 120.0
# So long both ranks step before one is killed.
_STEADY_S = 3.0


def _fit(config: dict[str, Any], callbacks: list[Any], model: Any, epochs: int) -> None:
    """Trains until there is a file "stop", and notes each step."""
    import keras
    import numpy as np
    import tensorflow as tf

    import ring_keras as ring

    directory = Path(config["directory"])

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            path = directory / f"step.{os.getpid()}"
            unfinished = directory / f"unfinished.{os.getpid()}"
            unfinished.write_text(f"{time.time()} {ring.size()}")
            unfinished.rename(path)
            time.sleep(0.01)

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            # One rank is enough: they agree.
            self.model.stop_training |= (directory / "stop").exists()

    x = np.random.default_rng(1).random((1024, 8), dtype="float32")
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
    model.fit(
        ring.data.shard(data, seed=1).batch(32),
        shuffle=False,
        initial_epoch=epochs,
        epochs=1_000_000,
        verbose=0,
        callbacks=[*callbacks, ring.callbacks.MetricAverage(), Note()],
    )


def _model() -> Any:
    import keras

    import ring_keras as ring

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile(ring.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    return model


def _train_elastic(config: dict[str, Any]) -> None:
    import ring_keras as ring

    model = _model()
    ring.init()
    _fit(config, [ring.callbacks.Elastic()], model, 0)


def _train_anew(config: dict[str, Any]) -> None:
    import ring_keras as ring

    ring.init()
    model, epochs = ring_ray.last_model() or (_model(), 0)
    broadcast = ring.callbacks.BroadcastGlobalVariables()
    _fit(config, [broadcast, ring_ray.ReportCheckpoint()], model, epochs)


def _run_elastic(config: dict[str, Any], kills: int) -> None:
    ring_ray.run_elastic(
        _train_elastic,
        [config],
        min_workers=1,
        max_workers=_RANKS,
        cooldown_range=(0.1, 0.1),
    )


def _run_anew(config: dict[str, Any], kills: int) -> None:
    ring_ray.RingTrainer(
        _train_anew,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=_RANKS),
        run_config=RunConfig(
            storage_path=config["directory"] + "/storage",
            failure_config=FailureConfig(max_failures=kills),
        ),
    ).fit()


def _steps(directory: Path) -> dict[int, tuple[float, int]]:
    """When each process has ended its last step, and with how many ranks, by pid."""
    found = {}
    for path in directory.glob("step.*"):
        at, size = path.read_text().split()
        found[int(path.suffix[1:])] = float(at), int(size)
    return found


def _await(directory: Path, since: float, size: int, ranks: int) -> float:
    """When so many processes have made a step of so many ranks after a moment."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        after = [at for at, n in _steps(directory).values() if at > since and n == size]
        if len(after) >= ranks:
            return time.time()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no step of {size} ranks within {_TIMEOUT_S:g} s")
        time.sleep(_LOOK_INTERVAL_S)


def _measure(
    run: Callable[[dict[str, Any], int], None], kills: int, goes_on: bool
) -> tuple[list[float], list[float]]:
    """Seconds from each kill to the next step of anyone, and of all ranks."""
    first, full = [], []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        job = threading.Thread(target=run, args=({"directory": name}, kills))
        job.start()
        try:
            _await(directory, 0, _RANKS, _RANKS)
            for _ in range(kills):
                time.sleep(_STEADY_S)
                victim = max(_steps(directory), key=lambda p: _steps(directory)[p])
                os.kill(victim, signal.SIGKILL)
                killed_at = time.time()
                if goes_on:
                    first.append(_await(directory, killed_at, 1, 1) - killed_at)
                # The step that was under way counts for nothing.
                since = killed_at + (first[-1] if goes_on else 1.0)
                full.append(_await(directory, since, _RANKS, _RANKS) - killed_at)
                if not goes_on:
                    first.append(full[-1])  # All of them start anew.
        finally:
            (directory / "stop").touch()
            job.join(_TIMEOUT_S)
    return first, full


def main() -> None:
    """Prints both, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3, help="of each, a round")
    options = parser.parse_args()
    ray.init(num_cpus=2 * _RANKS, include_dashboard=False)
    ways = {"run_elastic": (_run_elastic, True), "Ray's restart": (_run_anew, False)}
    seconds: dict[str, tuple[list[float], list[float]]] = {
        name: ([], []) for name in ways
    }
    for _ in range(options.rounds):
        for name, (run, goes_on) in ways.items():
            for all_of_them, new in zip(
                seconds[name], _measure(run, options.kills, goes_on), strict=True
            ):
                all_of_them += new
    ray.shutdown()
    for what, k in (("the next step of any rank", 0), ("all ranks again", 1)):
        medians = {name: statistics.median(found[k]) for name, found in seconds.items()}
        told = ", ".join(
            f"{name} {median:.2f} s ({min(seconds[name][k]):.2f}-"
            f"{max(seconds[name][k]):.2f})"
            for name, median in medians.items()
        )
        ratio = medians["Ray's restart"] / medians["run_elastic"]
        print(f"from a kill to {what}: {told}; ratio {ratio:.1f}")
    print(f"medians of {options.rounds * options.kills} kills each, {_RANKS} ranks")


if __name__ == "__main__":
    main()
