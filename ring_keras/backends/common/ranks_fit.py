"""One `fit` of several ranks: what they do together, and when."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
from absl import logging

from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import (
    GradientHook,
    common_state,
    common_weights,
    hooks_of,
    local_in,
    refuse_variables,
)
from ring_keras.backends.common.join import is_joined
from ring_keras.backends.common.joined_batches import JoinedBatches, in_joined_step
from ring_keras.backends.common.joined_tests import JoinedTests
from ring_keras.backends.common.listed_callbacks import listed, meets
from ring_keras.backends.common.same_data import (
    compare_first_batches,
    warn_of_same_data,
)
from ring_keras.config import keras_backend
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.keras_internals import calls
from ring_keras.layers.global_moments import described
from ring_keras.layers.moving_statistics import layers_apart
from ring_keras.states.array_digest import array_digest
from ring_keras.states.begun_accumulation import keep_own_accumulated
from ring_keras.states.common_layers import agree_on_layers
from ring_keras.states.equal_weights import require_equal
from ring_keras.states.first_ranks import take_first_ranks
from ring_keras.states.layer_state import agree_on_state, warn_of_averages
from ring_keras.states.metric_state import result_of_all_ranks
from ring_keras.states.moving_moments import average_moments
from ring_keras.states.weight_digests import all_digests
from ring_keras.training.batch_losses import warn_of_batch_losses
from ring_keras.training.calls_under_way import require_all_there
from ring_keras.training.common_values import (
    class_weight_in_words,
    refuse_metrics_of_some,
    require_common_epoch,
    require_common_values,
)
from ring_keras.training.epoch_agreement import EpochAgreement
from ring_keras.values.objects import allgather_object

__all__ = ["RanksFit"]

# By the model's id: the `fit` that trains it. Keras would save an attribute.
_under_way: weakref.WeakValueDictionary[int, RanksFit] = weakref.WeakValueDictionary()

# What comes after the last batch.
_END = object()


class RanksFit(keras.callbacks.Callback):
    """The callback behind the program's own, and a context around `fit`.

    Each back end has a class of its own, with its `_step`.

    Args:
        model: That is trained.
        process_set: The ranks that train it.
        given: The arguments of `fit`.
    """

    def __init__(
        self, model: keras.Model, process_set: ProcessSet, given: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._trained = model
        self._process_set = process_set
        self._given = given
        self.agreement = EpochAgreement(
            model, process_set, lambda: False, counts_steps=True
        )
        own = listed(given["callbacks"])
        self._meeting = sorted(type(one).__name__ for one in own if meets([one], "fit"))
        self._has_backup = any(
            isinstance(one, keras.callbacks.BackupAndRestore) for one in own
        )
        self.must_report_all = False
        """Whether a callback wants all ranks to validate, or none."""
        self._root = 0
        self._local_keys: set[Any] = set()
        self._is_in_local_layers = local_in(model)
        self._evaluates: list[bool] = []
        self._reports_all = True
        self._has_same_data = False
        self._epochs = 0
        self._steps = self._compared = 0
        self._said: set[str] = set()
        self._train_function: Callable[..., Any] | None = None
        self._joined: JoinedBatches | None = None
        self._joined_tests: JoinedTests | None = None
        if is_joined(given["x"]):
            self._joined = JoinedBatches(self.agreement)
        if is_joined(given["validation_data"]):
            self._joined_tests = JoinedTests(model, process_set)
        # Of this rank's last step in the epoch that was on a batch of its own.
        self._logs: Any = {}

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """In it the model computes a step."""
        return contextlib.nullcontext() if self._joined is None else in_joined_step()

    @property
    def joins(self) -> bool:
        """Whether a rank may take a step without a batch."""
        return self._joined is not None

    @classmethod
    def of(cls, model: keras.Model) -> RanksFit | None:
        """The one that is under way."""
        return _under_way.get(id(model))

    @classmethod
    @contextlib.contextmanager
    def around_another(cls, model: keras.Model) -> Iterator[None]:
        """What a callback of a `fit` trains inside is none of that one's steps."""
        outer = cls.of(model)
        if outer is None:
            yield
            return
        outer._leave_model()
        try:
            with outer._evaluating_another():
                yield
        finally:
            outer._take_model()

    @classmethod
    @contextlib.contextmanager
    def around_batch(
        cls,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        sample_weight: Any = None,
        *others: Any,
        **more: Any,
    ) -> Iterator[None]:
        """In it `train_on_batch` of these arguments runs. Before, ranks begin alike."""
        internals.build_on_batch(model, (x, y, sample_weight))
        cls.refuse_model(model)
        for hook in hooks_of(model):
            hook.take_first_ranks(model.trainable_weights, has_gradients=False)
        yield

    def __enter__(self) -> RanksFit:
        """Keras reports epochs to it."""
        self.refuse_what_is_not_there()
        self._take_model()
        return self

    def __exit__(self, *_: object) -> None:
        """The model is as it was."""
        self._leave_model()
        # Keras keeps it, and the next `fit` would begin there, too.
        internals.set_initial_epoch(self._trained, None)

    def _take_model(self) -> None:
        _under_way[id(self._trained)] = self
        internals.replace(self._trained, internals.METRICS_RESULT, self._report)
        if self._train_function is not None:
            internals.set_train_function(self._trained, self._step)

    def _leave_model(self) -> None:
        _under_way.pop(id(self._trained), None)
        internals.restore(self._trained, internals.METRICS_RESULT)
        # A program may have compiled the model anew.
        if self._trained.train_function == self._step:
            internals.set_train_function(self._trained, self._train_function)

    @classmethod
    def refuse_model(cls, model: keras.Model) -> None:
        """Raises for what this back end does not do yet with a model that trains."""
        refuse_variables(model.weights)
        if keras.distribution.distribution() is not None:
            raise RingKerasError(
                "[RK660] keras.distribution is set, which divides a model or its data "
                f"among the devices of {keras_backend().name}. With ring_keras each "
                "rank has one: unset it."
            )

    def refuse_what_is_not_there(self) -> None:
        """Raises for what this back end does not do yet in `fit`."""
        backend = keras_backend().name
        self.refuse_model(self._trained)
        has_local = any(hook.options.local_layers for hook in hooks_of(self._trained))
        if self._has_backup and has_local:
            raise RingKerasError(
                "[RK660] BackupAndRestore with local_layers is not there yet with "
                f"Keras's back end {backend}: the backup would have one rank's. Leave "
                "out one of the two, or set KERAS_BACKEND=tensorflow."
            )
        if self._joined is not None and self._given["steps_per_epoch"]:
            raise RingKerasError(
                "[RK660] fit(steps_per_epoch=...) with data of ring_keras.data.join() "
                f"is not there yet with Keras's back end {backend}. Leave out one of "
                "the two: joined data end with those of the last rank."
            )

    def begin_alike(self, root_rank: int, local_keys: set[Any]) -> None:
        """Before all callbacks have begun: all ranks are to take that one's state.

        Args:
            root_rank: Its rank in the job.
            local_keys: Of variables of which each rank keeps its own values.
        """
        self._root = self._process_set.position_of(root_rank)
        self._local_keys = local_keys
        trained = any(
            internals.variable_key(variable) in local_keys
            and not self._is_in_local_layers(variable)
            for variable in self._trained.trainable_variables
        )
        if trained or (local_keys and self._has_backup):
            backend = keras_backend().name
            of_which = "that an optimizer trains" if trained else "and a backup"
            raise RingKerasError(
                f"[RK660] BroadcastGlobalVariables(local_variables=...) {of_which} is "
                f"not there yet with Keras's back end {backend}: set "
                "KERAS_BACKEND=tensorflow."
            )

    def _is_local(self, variable: Any) -> bool:
        return (
            self._is_in_local_layers(variable)
            or internals.variable_key(variable) in self._local_keys
        )

    def _common_weights(self) -> list[Any]:
        return [v for v in common_weights(self._trained) if not self._is_local(v)]

    def _common_state(
        self, optimizers: Sequence[keras.optimizers.Optimizer]
    ) -> list[Any]:
        return common_state(optimizers, self._trained.weights, self._is_local)

    @contextlib.contextmanager
    def evaluating(self, *, validates: bool) -> Iterator[None]:
        """In it `evaluate` runs.

        Args:
            validates: Whether `fit` has called it.
        """
        tests = self._joined_tests
        self._evaluates.append(validates)
        try:
            with self._evaluating_another():
                yield
        finally:
            if tests and validates:
                tests.drop()
            self._evaluates.pop()

    def _evaluating_another(self) -> contextlib.AbstractContextManager[None]:
        """In it the model's test function is its own."""
        tests = self._joined_tests
        return tests.around_another() if tests else contextlib.nullcontext()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """An evaluation with these callbacks: a validation of `fit`."""
        if self._joined_tests is not None and self._evaluates[-1:] == [True]:
            run = calls.calling_run(self._trained)
            assert run is not None
            self._joined_tests.begin(run.epoch_iterator)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have begun, and may have restored a backup."""
        require_all_there(self._process_set)
        self._require_common_calls()
        warn_of_batch_losses(self._trained)
        self._take_first_ranks_state()
        self._take_train_function()
        run = calls.calling_run(self._trained)
        assert run is not None
        if self._joined is None:
            internals.ask_before_steps(run.epoch_iterator, self._next_batches)
        else:
            internals.ask_to_the_last(run.epoch_iterator, self._next_batches)

    def _take_train_function(self) -> None:
        self._train_function = internals.train_function(self._trained)
        internals.set_train_function(self._trained, self._step)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """A callback may have made another train function."""
        if self._trained.train_function != self._step:
            self._take_train_function()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Steps are counted from here."""
        self.agreement.begin_epoch()
        self._logs = {}
        require_all_there(self._process_set)
        # Before the first one, callbacks may have set them on one rank.
        optimizers = [
            optimizer
            for optimizer in internals.innermost_optimizers(self._trained)
            if self._epochs and GradientHook.of(optimizer) is not None
        ]
        require_common_epoch(epoch, optimizers, self._process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have decided whether to stop."""
        require_all_there(self._process_set)
        self.agreement.agree_to_stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Something may have begun to train alone later."""
        if self._epochs > 1:
            require_all_there(self._process_set)
            self._require_one_model("at the end of fit()")

    def _require_common_calls(self) -> None:
        model, given = self._trained, self._given
        steps = self.params.get("steps")
        validates = given["validation_data"] is not None or bool(
            given["validation_split"]
        )
        compared = [
            ("epochs", given["epochs"], "epochs of fit()"),
            (
                "joined arguments",
                [name for name in ("x", "validation_data") if is_joined(given[name])],
                "data: call ring_keras.data.join() on all ranks, or on none",
            ),
            (
                "steps per epoch",
                steps if self._joined is None else None,
                "number of batches: the same batch size, and data divided with "
                "ring_keras.data.shard(); or join ranks whose data end earlier with "
                "ring_keras.data.join()",
            ),
            (
                "values of validation_freq",
                str(given["validation_freq"]) if validates else None,
                "validation_freq in fit()",
            ),
            (
                "class weights",
                class_weight_in_words(given["class_weight"]),
                "class_weight in fit(), counted in all of the data",
            ),
            (
                "numbers of losses that add up their batch",
                len(internals.summed_losses(model)),
                "losses, with the same reduction, in compile()",
            ),
            (
                "synchronized batch normalizations",
                described(model),
                "layers: those of ring_keras.layers.SyncBatchNormalization, "
                "frozen or not, on all ranks",
            ),
            (
                "shapes of weights",
                [list(variable.shape) for variable in model.weights],
                "model",
            ),
            (
                "distributed optimizers",
                [hook.described() for hook in hooks_of(model)],
                "optimizers, with the same options",
            ),
            ("callbacks", self._meeting, "callbacks of ring_keras in fit()"),
        ]
        calls = allgather_object(
            [
                validates,
                array_digest(given["x"]),
                steps,
                *(value for _, value, _ in compared),
            ],
            name="fit",
            process_set=self._process_set,
        )
        validate, data, steps_of_ranks, *everyones = zip(*calls, strict=True)
        for (what, _, remedy), values in zip(compared, everyones, strict=True):
            require_common_values(values, what, remedy, self._process_set)
        if self._joined is not None:
            known = None not in steps_of_ranks
            self.params["steps"] = max(steps_of_ranks) if known else None
        # Each rank shuffles arrays in its own way, so that first batches would differ.
        self._has_same_data = len(set(data)) == 1 and data[0] is not None
        if self._has_same_data:
            warn_of_same_data("fit() got the same arrays", self._process_set)
        self._reports_all = len(set(validate)) == 1
        validating = list(itertools.compress(self._process_set.ranks, validate))
        if not self._reports_all and self.must_report_all:
            refuse_metrics_of_some(validating)
        if not self._reports_all and self._process_set.rank() == 0:
            logging.warning(
                "ring_keras: [RK502] only ranks %s have validation_data, so each "
                "rank's metrics, in its History too, are of its own data. Give every "
                "rank its part, with ring_keras.data.shard().",
                validating,
            )

    def _take_first_ranks_state(self) -> None:
        """Weights, the optimizers' state, and the epoch that a backup begins with."""
        model = self._trained
        optimizers = internals.optimizers_of(model)
        state = [*self._common_weights(), *self._common_state(optimizers)]
        unique = list({id(variable): variable for variable in state}.values())
        shapes = [list(variable.shape) for variable in unique]
        everyones = allgather_object(
            [internals.initial_epoch(model) or 0, self._root, shapes],
            name="fit/state",
            process_set=self._process_set,
        )
        epochs, roots, everyones_shapes = zip(*everyones, strict=True)
        ranks = self._process_set.ranks
        require_common_values(
            [ranks[root] for root in roots],
            "root ranks",
            "root_rank in BroadcastGlobalVariables or Distributed",
            self._process_set,
        )
        first = everyones_shapes[0]
        for rank, theirs in zip(ranks, everyones_shapes, strict=True):
            if theirs != first:
                raise RankMismatchError(
                    "[RK326] fit(): the optimizers' states differ across ranks: rank "
                    f"{ranks[0]} has {len(first)} variables, rank "
                    f"{rank} {len(theirs)}, or others of other shapes. Give every rank "
                    "the same model and optimizers."
                )
        keep_own_accumulated(model, self._root, "fit/accumulated", self._process_set)
        take_first_ranks(unique, "fit/state", self._process_set, root=self._root)
        self.take_modules_state()
        if len(set(epochs)) > 1 or epochs[self._root]:
            internals.set_initial_epoch(model, epochs[self._root])
        for hook in hooks_of(model):
            hook.begun_alike(model.weights)
        agree_on_layers(model, self._is_local, "fit/layers", self._process_set)

    def bring_values(self) -> None:
        """Within an epoch: the model's variables have what the last step has given."""

    def take_modules_state(self) -> None:
        """The root's state of what Keras does not know; collective."""

    def average_modules_state(self) -> None:
        """At the end of an epoch's steps, the ranks' average; collective."""

    def _step(self, *args: Any) -> Any:
        """An execution in place of Keras's, with what that is given and returns.

        The ranks have agreed on its first step; on others see `_begin_step`.
        """
        raise NotImplementedError

    def _next_batches(self, batches: Iterator[Any]) -> Iterator[Any] | None:
        """Those of the next execution; None if it takes place on no rank. A collective.

        A rank without one tells the others before Keras calls callbacks, as on JAX.
        """
        if self._joined is not None:
            batch = self._later_batch(batches)
            return None if batch is None else itertools.chain([batch], batches)
        batch = next(batches, _END)
        if batch is _END:
            return iter(()) if self.agreement.goes_on(0) else None
        return itertools.chain([batch], batches) if self._begin_step(batch) else None

    def _begin_step(self, batch: Any) -> bool:
        """Whether all ranks have a batch; if so they take a step. A collective."""
        if not self.agreement.goes_on():
            return False
        self._count_step(batch)
        return True

    def _later_batch(self, batches: Iterator[Any]) -> Any:
        """That of a step which is none's first, or of joined data; None without one.

        A collective. A rank without one tells the others before it compares weights.
        """
        if self._joined is None:
            batch = next(batches, _END)
            if batch is _END:
                self.agreement.end_epoch()
                return None
            return batch if self._begin_step(batch) else None
        batch = self._joined.take(batches)
        if batch is not None:
            self._count_step(batch)
        return batch

    def _count_step(self, batch: Any) -> None:
        if not self._steps and not self._has_same_data:
            require_all_there(self._process_set)
            compare_first_batches(batch, self._process_set)
        self._steps += 1

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Compares weights, if that is asked for."""
        every = current_job().config.check_steps
        # An execution may have gone past the step.
        if every and self._steps // every > self._compared // every:
            self._compared = self._steps
            self.bring_values()
            require_all_there(self._process_set)
            self._require_one_model(
                f"{self._steps} steps after its beginning", of_layers=False
            )

    def _report(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Called at the end of an epoch's steps, and of an evaluation's."""
        if not self._evaluates:
            self._end_steps()
        elif not self._evaluates[-1]:
            return self._local(logs)
        elif self._joined_tests is not None:
            self._joined_tests.end()
        if not self._reports_all:
            return self._local(logs)
        require_all_there(self._process_set)
        return result_of_all_ranks(self._trained, logs, self._local, self._process_set)

    def _local(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """As Keras reports."""
        local = getattr(type(self._trained), internals.METRICS_RESULT)
        result: Mapping[str, Any] = local(self._trained, logs)
        return result

    def _end_steps(self) -> None:
        self.agreement.end_epoch()
        require_all_there(self._process_set)
        average_moments(layers_apart(self._trained, self._is_local), self._process_set)
        self.average_modules_state()
        self._epochs += 1
        self._require_one_model("after the first epoch" if self._epochs == 1 else None)

    def _require_one_model(self, when: str | None, *, of_layers: bool = True) -> None:
        """Gives the ranks one state of layers; compares trained weights at times."""
        model = self._trained
        by_optimizer = {id(v) for v in model.trainable_weights}
        by_optimizer |= {id(v) for v in internals.frozen_weights(model)}
        common = self._common_weights()
        # Which steps change on each rank, by its data.
        state = [v for v in common if of_layers and id(v) not in by_optimizer]
        trained = [v for v in common if id(v) in by_optimizer] if when else []
        if not of_layers:
            trained += self._common_state(internals.optimizers_of(model))
        if not state and not trained:
            return
        digests = all_digests([*state, *trained], "fit/weights", self._process_set)
        is_joined = self._joined is not None
        averaged = agree_on_state(
            state, digests[:, : len(state)], self._process_set, is_joined=is_joined
        )
        new = [name for name in averaged if name not in self._said]
        self._said.update(new)
        if new and self._process_set.rank() == 0:
            warn_of_averages(new, is_joined=is_joined)
        if when:
            require_equal(trained, digests[:, len(state) :], when, self._process_set)
