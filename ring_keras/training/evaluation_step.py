"""A model's `test_step`, for data with padding."""

from typing import Any

import keras

from ring_keras import keras_internals as internals
from ring_keras.training import uneven_batches
from ring_keras.training.own_examples import OwnExamples

__all__ = ["EvaluationStep"]


class EvaluationStep:
    """Replaces `test_step` on one model instance: padding counts for nothing.

    To Keras padding is an example of weight 0, which the loss of a batch counts.

    Args:
        model: A compiled model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._test_step = model.test_step
        self._function: Any = None
        self.own_examples = OwnExamples()
        """Whether this rank had some in the last step."""

    @staticmethod
    def of(model: keras.Model) -> "EvaluationStep | None":
        """The one installed in this very model."""
        step = internals.replacement(model, internals.TEST_STEP)
        return step if isinstance(step, EvaluationStep) else None

    @classmethod
    def prepare(cls, model: keras.Model) -> None:
        """Puts one into the model once there are data with padding."""
        if not uneven_batches.padding_was_made():
            return
        step = cls.of(model)
        if step is None:
            step = cls(model)
            internals.replace(model, internals.TEST_STEP, step)
        step._make_function()
        step.own_examples.begin()

    def _make_function(self) -> None:
        """Has Keras call this step: without XLA, which cannot leave out rows."""
        if self._function is not None and self._function is self._model.test_function:
            return
        compiled = self._model.jit_compile
        self._model.jit_compile = False
        try:
            self._model.make_test_function(force=True)
        finally:
            self._model.jit_compile = compiled
        self._function = self._model.test_function

    def __call__(self, data: Any) -> Any:
        """Runs, or traces, one step on a batch."""
        if self._model.test_function is not self._function:
            return self._test_step(data)  # Keras has made another, for XLA maybe.
        data = uneven_batches.without_padding(data)
        count = uneven_batches.example_count(data)
        if count is None or not uneven_batches.is_weighted_by_row(data):
            return self._test_step(data)
        self.own_examples.note(count)
        with uneven_batches.undone_if(
            count == 0, self._model.metrics_variables, self._model.metrics
        ):
            return self._test_step(uneven_batches.at_least_one_row(data))
