"""Looks for a good learning rate and width with Optuna; trials train on all ranks.

    pip install optuna
    ringrun -np 2 python examples/optuna_search.py

Rank 0 asks the study and reports to it; the others follow rank 0. So `--storage` may
name a database that several such jobs share, each with its own ranks. All ranks stop a
trial that looks worse than the others after the same epoch.
"""

import keras
import numpy as np
import optuna
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

import ring_keras as ring

FLAGS = flags.FLAGS
flags.DEFINE_integer("trials", 8, "Trials of this job.", lower_bound=1)
flags.DEFINE_integer("epochs", 5, "Epochs of a trial.", lower_bound=1)
flags.DEFINE_string("storage", None, "Of the study; by default this job's memory.")


class Pruning(keras.callbacks.Callback):
    """Reports each epoch to the study, and stops a trial that it gives up."""

    def __init__(self, trial: optuna.Trial | None) -> None:
        super().__init__()
        self.trial = trial
        self.pruned = False

    def on_epoch_end(self, epoch, logs=None):
        """Rank 0 decides for all."""
        if self.trial is not None:
            self.trial.report(logs["val_accuracy"], epoch)
            self.pruned = self.trial.should_prune()
        self.pruned = ring.broadcast_object(self.pruned, root_rank=0)
        self.model.stop_training = self.model.stop_training or self.pruned


def train(learning_rate: float, units: int, pruning: Pruning) -> float:
    """One trial, on all ranks; returns the accuracy on the digits for validation."""
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(
        ((images / 16.0).astype(np.float32), labels)
    )
    validation = ring.data.shard(data.take(360), remainder="keep").batch(360)
    training = ring.data.shard(data.skip(360), seed=1).batch(32)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(units, activation="silu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        ring.DistributedOptimizer(keras.optimizers.Adam(learning_rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        training,
        validation_data=validation,
        epochs=FLAGS.epochs,
        shuffle=False,  # The dataset does that itself.
        verbose=0,
        callbacks=[
            ring.callbacks.BroadcastGlobalVariables(root_rank=0),
            ring.callbacks.MetricAverage(),
            pruning,  # Behind MetricAverage: of what all ranks have seen.
        ],
    ).history
    return history["val_accuracy"][-1]


def main(_: list[str]) -> None:
    """Runs the trials, one after the other."""
    ring.init()
    study = trial = None
    if ring.rank() == 0:
        study = optuna.create_study(
            study_name="digits",
            storage=FLAGS.storage,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=1),
            load_if_exists=True,
        )
    for _ in range(FLAGS.trials):
        parameters = None
        if study is not None:
            trial = study.ask()
            parameters = {
                "learning_rate": trial.suggest_float("rate", 1e-4, 1e-1, log=True),
                "units": trial.suggest_int("units", 8, 128, log=True),
            }
        parameters = ring.broadcast_object(parameters, root_rank=0)
        pruning = Pruning(trial)
        accuracy = train(**parameters, pruning=pruning)
        if study is not None:
            if pruning.pruned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, accuracy)
    if study is not None:
        best = study.best_trial
        print(f"best: {best.value:.2%} with {best.params}")


if __name__ == "__main__":
    app.run(main)
