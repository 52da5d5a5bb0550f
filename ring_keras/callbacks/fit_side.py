"""What callbacks ask of the `fit` that calls them, on each back end of Keras."""

from __future__ import annotations

import abc
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import keras

from ring_keras._requirements import of_back_end
from ring_keras.job.process_set import ProcessSet
from ring_keras.job.topology import rank

if TYPE_CHECKING:
    from ring_keras.callbacks.step_rates import Rule, StepRates

__all__ = ["CommonBeginning", "FitSide", "fit_side"]

_Result = TypeVar("_Result")


class CommonBeginning:
    """How all ranks of one `fit` come to begin alike."""

    def end(self) -> None:
        """`fit` ends, maybe without a step."""


class FitSide(abc.ABC):
    """That of a back end. Callbacks themselves are the same on all of them."""

    @abc.abstractmethod
    def prepare_fits(self) -> None:
        """From now on, each `fit` does what the ranks need."""

    @abc.abstractmethod
    def prepare_callbacks(self) -> None:
        """From now on, each `fit` looks for callbacks in which the ranks meet."""

    @abc.abstractmethod
    def require_prepared(self, callback: keras.callbacks.Callback) -> None:
        """Raises in a `fit` of several ranks that knows nothing of its callbacks.

        Args:
            callback: It is called in `on_train_begin`.
        """

    @abc.abstractmethod
    def process_set_of(self, model: keras.Model) -> ProcessSet:
        """The ranks that train, or evaluate, this model together."""

    @abc.abstractmethod
    def run_together(
        self, model: keras.Model, section: Callable[[], _Result]
    ) -> _Result | None:
        """What all ranks of a `fit` do at the same place in it, if all come there.

        Args:
            model: That is trained.
            section: Does it; returns a plain value.
        """

    def save_if_due(
        self, model: keras.Model, root_rank: int, decide: Callable[[], None]
    ) -> Exception | None:
        """Has one rank decide whether to save, with what it needs of the others.

        Args:
            model: That is trained.
            root_rank: The one that writes.
            decide: Called there; calls `model.save` or `model.save_weights`, or not.

        Returns:
            Why that rank could not; the others have not heard of it.
        """
        if rank() == root_rank:
            try:
                decide()
            except Exception as error:  # File systems and models have many.
                return error
        return None

    @abc.abstractmethod
    def one_rank_alone(self, what: str) -> AbstractContextManager[None]:
        """What is done inside, the other ranks do not do.

        Args:
            what: It is that runs on one rank, for messages.
        """

    @abc.abstractmethod
    def begin_alike(
        self,
        callback: keras.callbacks.Callback,
        root_rank: int,
        local_keys: set[Any],
    ) -> CommonBeginning:
        """Has the ranks of the `fit` that begins take one's variables.

        Args:
            callback: Asks for it, in `on_train_begin`.
            root_rank: That one.
            local_keys: Of variables that each rank has its own of.
        """

    @abc.abstractmethod
    def report_fit(self, callback: keras.callbacks.Callback) -> None:
        """The `fit` that begins reports of all ranks' data: the callback asks for it.

        All ranks have to validate, then, or none.
        """

    @abc.abstractmethod
    def report_evaluation(
        self, callback: keras.callbacks.Callback, *, in_fit: bool
    ) -> None:
        """The evaluation that begins reports of all ranks' data.

        Args:
            callback: Asks for it, in `on_test_begin`.
            in_fit: Whether also where `fit` has begun it.
        """

    @abc.abstractmethod
    def step_rates(self, rule: Rule) -> StepRates:
        """What brings a rule's learning rates to the steps of the `fit` that begins."""


@functools.cache
def fit_side() -> FitSide:
    """That of this process."""
    side: type[FitSide] | None = of_back_end("callbacks.CallbacksSide")
    if side is None:
        # By its name, as it knows callbacks.
        module = importlib.import_module("ring_keras.callbacks.tensorflow_side")
        side = module.TensorFlowSide
    return side()
