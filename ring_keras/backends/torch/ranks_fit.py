"""A `fit` on torch: its steps, and the modules of torch in a model."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import torch

from ring_keras import keras_internals as internals
from ring_keras.backends.common.joined_batches import StandIn
from ring_keras.backends.common.ranks_fit import RanksFit
from ring_keras.backends.common.step import step_of
from ring_keras.backends.torch.buffers import (
    average_buffers,
    buffers_of,
    own_random_state,
    take_first_ranks_buffers,
)
from ring_keras.backends.torch.overlap import BackwardOverlap
from ring_keras.errors import RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet
from ring_keras.states.merging_metrics import python_states_kept
from ring_keras.states.own_state import own_state

__all__ = ["TorchFit"]

# What an execution has in place of a batch that there is not.
_NO_BATCH = object()


class TorchFit(RanksFit):
    """See `RanksFit`."""

    def __init__(
        self, model: keras.Model, process_set: ProcessSet, given: Mapping[str, Any]
    ) -> None:
        super().__init__(model, process_set, given)
        self._random: torch.Tensor | None = None
        job = current_job()
        # On one host the engine's thread would take the cores on which backward runs.
        between_hosts = job.local_size < job.size
        # A layer that is synchronized communicates in backward, too: what travels
        # meanwhile would have to begin at the same place on all ranks.
        overlaps = between_hosts and self._joined is None
        overlaps = overlaps and not internals.synchronized_layers(model)
        self._overlap = BackwardOverlap(model, is_wanted=overlaps)

    def __exit__(self, *exception: object) -> None:
        """The model, and its backward, are as they were."""
        super().__exit__(*exception)
        self._overlap.end()

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

    @classmethod
    def refuse_model(cls, model: keras.Model) -> None:
        """Also one that Keras itself has made one of all ranks."""
        super().refuse_model(model)
        if internals.is_in_own_ddp(model):
            raise RingKerasError(
                f"[RK162] Keras has wrapped model '{model.name}' in torch's "
                "DistributedDataParallel already, before its optimizer was "
                "distributed: gradients would be averaged twice. Call "
                "ring_keras.DistributedOptimizer before the model's first fit(), "
                "evaluate() or predict()."
            )

    def take_modules_state(self) -> None:
        """Buffers, and from what this rank's modules draw."""
        take_first_ranks_buffers(self._trained, self._process_set, root=self._root)
        self._random = own_random_state(self._trained, self._process_set)

    def average_modules_state(self) -> None:
        """Buffers."""
        average_buffers(self._trained, self._process_set)

    def _next_batches(self, batches: Iterator[Any]) -> Iterator[Any] | None:
        """Keras takes as many as an execution may have, before callbacks hear of it.

        If there were fewer, it would tell the data that the epoch has ended.
        """
        found = super()._next_batches(batches)
        for batch in found or ():
            return itertools.chain([batch], found or (), itertools.repeat(_NO_BATCH))
        return found

    def _step(self, data: Sequence[Any]) -> Any:
        """The logs of an execution; before Keras 3.16 it is one step."""
        batches = iter([batch for batch in data if batch is not _NO_BATCH])
        for number in range(self._trained.steps_per_execution):
            batch = self._later_batch(batches) if number else next(batches)
            if batch is None:
                break
            with self.in_step():
                self._one_step(batch)
        return self._logs

    def _one_step(self, batch: Any) -> None:
        assert self._train_function is not None
        if isinstance(batch, StandIn):
            batch = batch.batch
            with step_of(self._trained, batch, counts=False), _undone(self._trained):
                self._train_function([batch])
            return
        with (
            step_of(self._trained, batch),
            self._numbers_of_modules(),
            self._overlap.step(),
        ):
            self._logs = self._train_function([batch])

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


@contextlib.contextmanager
def _undone(model: keras.Model) -> Iterator[None]:
    """What a step changes in it, this rank's own state and numbers, is as before."""
    values = [variable.value for variable in own_state(model)]
    kept = [one.detach().clone() for one in (*values, *buffers_of(model))]
    with torch.random.fork_rng(devices=[]), python_states_kept(model.metrics):
        yield
    with torch.no_grad():
        # Buffers may be other tensors by now, in their places.
        for one, before in zip((*values, *buffers_of(model)), kept, strict=True):
            one.copy_(before)
