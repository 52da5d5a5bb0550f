"""A `fit` on torch: its steps, and the modules of torch in a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import torch

from ring_keras import keras_internals as internals
from ring_keras.backends.common.ranks_fit import RanksFit
from ring_keras.backends.common.step import step_of
from ring_keras.backends.torch.buffers import (
    average_buffers,
    own_random_state,
    take_first_ranks_buffers,
)
from ring_keras.job.process_set import ProcessSet

__all__ = ["TorchFit"]


class TorchFit(RanksFit):
    """See `RanksFit`."""

    def __init__(
        self, model: keras.Model, process_set: ProcessSet, given: Mapping[str, Any]
    ) -> None:
        super().__init__(model, process_set, given)
        self._random: torch.Tensor | None = None

    @classmethod
    @contextlib.contextmanager
    def around_batch(
        cls, model: keras.Model, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        """Its step counts as one of `fit` does."""
        with super().around_batch(model, *args, **kwargs):
            train_function = internals.train_function(model)

            def counted(data: Any) -> Any:
                with step_of(model, data[0]):
                    return train_function(data)

            model.train_function = counted
            try:
                yield
            finally:
                model.train_function = train_function

    def take_modules_state(self) -> None:
        """Buffers, and from what this rank's modules draw."""
        take_first_ranks_buffers(self._trained, self._process_set, root=self._root)
        self._random = own_random_state(self._trained, self._process_set)

    def average_modules_state(self) -> None:
        """Buffers."""
        average_buffers(self._trained, self._process_set)

    def _step(self, data: Any) -> Any:
        """The logs of a step."""
        assert self._train_function is not None
        with step_of(self._trained, data[0]), self._numbers_of_modules():
            return self._train_function(data)

    @contextlib.contextmanager
    def _numbers_of_modules(self) -> Iterator[None]:
        """Modules of torch draw this rank's own; the program, what it would draw."""
        if self._random is None:
            yield
            return
        before = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(before)
