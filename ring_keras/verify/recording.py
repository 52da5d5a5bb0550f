"""The first steps of a script's first `fit`, as this rank runs them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks import BroadcastGlobalVariables, Distributed
from ring_keras.errors import RingKerasError
from ring_keras.job.process_set import global_process_set
from ring_keras.keras_internals.building import create_variables
from ring_keras.optimizers.hooking import shards_state
from ring_keras.optimizers.meeting_hook import meeting_optimizers
from ring_keras.optimizers.optimizer_hook import OptimizerHook
from ring_keras.optimizers.step_scope import current_step
from ring_keras.training.distributed_models import process_set_of
from ring_keras.values.reduce_op import ReduceOp
from ring_keras.verify.learning_rate import final_learning_rate
from ring_keras.verify.neutral import Neutralized, neutralize
from ring_keras.verify.state import Array, TrainedState

__all__ = ["EnoughStepsError", "Recording", "examples"]


class EnoughStepsError(BaseException):
    """Ends the script: what comes after would train on, and write files.

    No `Exception`, which a script might take for one of its own.
    """


class _Listener(keras.callbacks.Callback):
    """Hears what `fit` does."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keras knows how many steps there are."""
        self._recording.note_steps(self.params)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """A step is over."""
        self._recording.end_step()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Before there were enough steps."""
        raise EnoughStepsError


class Recording:
    """Takes the batch and the state of each step.

    Args:
        steps: How many to take.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._state: TrainedState | None = None
        self.model: Any = None
        """The one that the script trains first; None: it has trained none."""
        self.learning_rate: float | None = None
        """Once warm-up is over; None if unknown."""
        self.epoch_steps: int | None = None
        """How many steps its data have; None if unknown, or chosen by the script."""
        self.divides_state = False
        """Whether each rank has a part of the state of an optimizer of the model."""
        self.neutralized = Neutralized()
        self.structure: Any = None
        """Of a batch, with the position of each array among its leaves."""
        self.batches: list[list[Array]] = []
        """The leaves of each step's."""
        self.before: list[list[Array] | None] = []
        """The state before each step; None where there were no variables yet."""
        self.after: list[list[Array]] = []
        self.losses: list[tuple[float, float]] = []
        """Of each step: the sum of the loss over examples, and their number."""
        self._loss_before = (0.0, 0.0)
        self._knows_steps = False

    @contextlib.contextmanager
    def of_first_fit(self) -> Iterator[None]:
        """Records the first `fit` inside, which ends with EnoughStepsError."""
        fit, make = keras.Model.fit, keras.Model.make_train_function

        def make_train_function(model: Any, force: bool = False) -> None:
            before = model.train_function
            make(model, force)
            if model is self.model and model.train_function is not before:
                model.train_function = self._with_variables(model.train_function)

        def recorded_fit(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
            if self.model is not None:
                return fit(model, *args, **kwargs)
            bound = inspect.signature(fit).bind(model, *args, **kwargs)
            callbacks = bound.arguments.get("callbacks")
            bound.arguments["callbacks"] = self._begin(model, callbacks)
            chooses_steps = bound.arguments.get("steps_per_epoch") is not None
            self._knows_steps = not chooses_steps
            # Where the data end before the steps, it would come before our end.
            bound.arguments.pop("validation_data", None)
            with self._steps_taken(type(model)):
                return fit(*bound.args, **bound.kwargs)

        keras.Model.fit = recorded_fit
        keras.Model.make_train_function = make_train_function
        try:
            yield
        finally:
            keras.Model.fit = fit
            keras.Model.make_train_function = make

    @property
    def state(self) -> TrainedState:
        """The model's variables, once it has taken a step."""
        if self._state is None:
            self._state = TrainedState(self.model)
        return self._state

    @property
    def batch_size(self) -> int:
        """Of the first step."""
        return examples(self.batches[0])

    @property
    def distributed(self) -> bool:
        """Whether an optimizer of the model averages over the ranks."""
        return any(map(OptimizerHook.of, internals.optimizers_of(self.model)))

    @property
    def passes(self) -> int:
        """The most steps that an optimizer of the model takes for an update."""
        optimizers = internals.innermost_optimizers(self.model)
        return max(
            (one.gradient_accumulation_steps or 1 for one in optimizers), default=1
        )

    @property
    def only_averages(self) -> bool:
        """Whether it does, and none adds gradients up."""
        hooks = map(OptimizerHook.of, internals.optimizers_of(self.model))
        options = [hook.options for hook in hooks if hook is not None]
        return bool(options) and all(
            one.op is ReduceOp.AVERAGE and one.passes_factor == 1.0 for one in options
        )

    def _begin(self, model: keras.Model, callbacks: Any) -> Any:
        if shards_state(model) and process_set_of(model) is not global_process_set:
            raise RingKerasError(
                "[RK336] "
                "ring_keras.verify cannot compare the state of an optimizer with "
                "shard_state=True and a process_set, for now. Verify the training "
                "without shard_state: the weights are the same."
            )
        if meeting_optimizers(model):
            raise RingKerasError(
                "[RK343] "
                "ring_keras.verify compares with one process, step by step, and ranks "
                "that train apart (sync_every) are not meant to be equal to that. "
                "Verify the training without it."
            )
        self.model = model
        self.divides_state = shards_state(model)
        # Or no step that is compared would end in an update.
        self._steps = max(self._steps, self.passes)
        listed = getattr(callbacks, "callbacks", callbacks) or []
        listed = list(listed) if isinstance(listed, (list, tuple)) else [listed]
        everyone = _with_parts(listed)
        self.learning_rate = final_learning_rate(model, everyone)
        model.steps_per_execution = 1
        model.jit_compile = False  # XLA cannot hand batches to Python.
        adopts = any(isinstance(c, BroadcastGlobalVariables) for c in everyone)
        self.neutralized = neutralize(model, distributed=self.distributed or adopts)
        end = _Listener(self)
        # First, so that no other callback writes anything at the end.
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.callbacks.insert(0, end)
            return callbacks
        return [end, *listed]

    def note_steps(self, params: dict[str, Any]) -> None:
        """As Keras tells callbacks."""
        if self._knows_steps and params.get("steps"):
            self.epoch_steps = int(params["steps"])

    def _with_variables(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Creates all variables before the first step, whose beginning is recorded."""

        def run(iterator: Any) -> Any:
            spec = getattr(iterator, "element_spec", None)
            if spec is not None and not internals.optimizers_built(self.model):
                # Or the first step does, and is not compared.
                with contextlib.suppress(TypeError, ValueError):
                    create_variables(self.model, spec)
            return function(iterator)

        return run

    @contextlib.contextmanager
    def _steps_taken(self, cls: type[keras.Model]) -> Iterator[None]:
        """In the class, as an instance's own `train_step` is for ring_keras to set."""
        train_step = cls.train_step

        def recorded_step(model: keras.Model, data: Any) -> Any:
            if model is not self.model:
                return train_step(model, data)
            leaves = tf.nest.flatten(data)
            present = [leaf for leaf in leaves if leaf is not None]
            positions = iter(range(len(present)))
            self.structure = tf.nest.pack_sequence_as(
                data, [None if leaf is None else next(positions) for leaf in leaves]
            )
            step = current_step()
            has_batch = None if step is None else step.present
            if has_batch is None:
                has_batch = tf.constant(True)
            begun = tf.py_function(self._begin_step, [has_batch, *present], [])
            # No op of the step, whatever it works on, may come before.
            with tf.control_dependencies([] if tf.executing_eagerly() else [begun]):
                return train_step(model, data)

        cls.train_step = recorded_step
        try:
            yield
        finally:
            cls.train_step = train_step

    def _begin_step(self, has_batch: tf.Tensor, *batch: tf.Tensor) -> None:
        leaves = [_as_array(leaf) for leaf in batch]
        if not has_batch:  # Where a row of zeros stands for none.
            leaves = [leaf[:-1] if leaf.ndim else leaf for leaf in leaves]
        self.batches.append(leaves)
        self._loss_before = _loss(self.model)
        if internals.optimizers_built(self.model) and TrainedState(self.model).ready:
            self.before.append(
                self.state.values(self.after[-1] if self.after else None)
            )
        else:
            self.before.append(None)

    def end_step(self) -> None:
        """Takes the state after a step."""
        self.after.append(self.state.values(self.before[-1]))
        total, count = (
            now - before
            for now, before in zip(_loss(self.model), self._loss_before, strict=True)
        )
        self.losses.append((total, count))
        if len(self.after) >= self._steps:
            raise EnoughStepsError


def _with_parts(callbacks: list[Any]) -> list[Any]:
    """Those that `fit` will have: `Distributed` adds what it was asked for."""
    parts = [
        part
        for callback in callbacks
        if isinstance(callback, Distributed)
        for part in callback.missing_parts(callbacks, root_rank=0)
    ]
    return [*callbacks, *parts]


def examples(leaves: Sequence[Array]) -> int:
    """How many are in a batch."""
    return max((leaf.shape[0] for leaf in leaves if leaf.ndim), default=1)


def _as_array(leaf: tf.Tensor) -> Array:
    array = leaf.numpy()
    # Text, in a form that other ranks may be sent.
    return array.astype("S") if array.dtype == object else np.asarray(array)


def _loss(model: Any) -> tuple[float, float]:
    """Its sum over the examples of this epoch so far, and their number."""
    metrics: Sequence[Any] = getattr(model, "metrics", ())
    for metric in metrics:
        if metric.name == "loss" and isinstance(metric, keras.metrics.Mean):
            return float(metric.total.numpy()), float(metric.count.numpy())
    return 0.0, 0.0
