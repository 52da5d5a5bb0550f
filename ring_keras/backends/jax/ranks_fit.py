"""A `fit` on JAX: its steps are functions of the model's state."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras

from ring_keras import keras_internals as internals
from ring_keras.backends.common.hook import hooks_of
from ring_keras.backends.common.joined_batches import StandIn
from ring_keras.backends.common.ranks_fit import RanksFit
from ring_keras.backends.common.step import current_step, see_added_losses, step_of
from ring_keras.errors import RingKerasError, translated
from ring_keras.jax.order import contained
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, has_peers
from ring_keras.job.topology import is_initialized
from ring_keras.keras_internals import calls
from ring_keras.layers.global_moments import moments_of
from ring_keras.states.own_state import own_state

__all__ = ["JaxFit", "make_train_functions_anew"]

# Of a train function, for which job and optimizers it was traced.
_made_for: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

# A step on one is traced by itself, and knows that it does not count.
jax.tree_util.register_pytree_node(
    StandIn, lambda one: ((one.batch,), None), lambda _, parts: StandIn(*parts)
)


class JaxFit(RanksFit):
    """See `RanksFit`."""

    def __init__(
        self, model: keras.Model, process_set: ProcessSet, given: Mapping[str, Any]
    ) -> None:
        super().__init__(model, process_set, given)
        self.before_steps: list[Callable[[Any], Any]] = []
        """Each is given the state that a step is to begin with, and returns it."""

    @classmethod
    @contextlib.contextmanager
    def around_batch(
        cls, model: keras.Model, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        """Begins alike before JAX takes the weights."""
        _require_values(model)
        with super().around_batch(model, *args, **kwargs), translated():
            yield
            # Keras leaves an error to who reads a value.
            jax.block_until_ready([one.value for one in model.variables])

    @classmethod
    def refuse_model(cls, model: keras.Model) -> None:
        """Also with NNX."""
        super().refuse_model(model)
        # Older releases have no NNX.
        if getattr(keras.config, "is_nnx_enabled", bool)():
            raise RingKerasError(
                "[RK660] Keras with NNX is not there yet with ring_keras. Unset "
                "KERAS_NNX_ENABLED."
            )

    def refuse_what_is_not_there(self) -> None:
        """Also a model whose values are gone."""
        super().refuse_what_is_not_there()
        _require_values(self._trained)

    def bring_values(self) -> None:
        """Within an epoch `fit` has taken the values of variables."""
        self._trained.jax_state_sync()

    def _leave_model(self) -> None:
        self.bring_values()
        super()._leave_model()

    @contextlib.contextmanager
    def evaluating(self, *, validates: bool) -> Iterator[None]:
        """In it `evaluate` runs, which looks for the values of variables, too."""
        self.bring_values()
        with super().evaluating(validates=validates):
            yield

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """All callbacks have begun; no epoch has its batches yet."""
        run = calls.calling_run(self._trained)
        assert run is not None
        internals.hand_out_batches_singly(run.epoch_iterator)
        super().on_train_begin(logs)

    def _take_train_function(self) -> None:
        super()._take_train_function()
        if hooks_of(self._trained) and self._train_function not in _made_for:
            raise RingKerasError(
                f"[RK660] model '{self._trained.name}' makes its train function "
                "itself, without keras.Model.make_train_function(). With Keras's back "
                "end jax ranks cannot be weighted in it: write a train_step() in its "
                "place."
            )

    def _step(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """The logs and the state after an execution, one step after the other."""
        try:
            for number in range(self._trained.steps_per_execution):
                # The first one ends the epoch where there is none.
                batch = self._later_batch(iterator) if number else next(iterator)
                if batch is None:
                    break
                assert self._train_function is not None
                for before in self.before_steps:
                    state = before(state)
                with translated():
                    made = self._train_function(state, iter([batch]))
                    # A step that fails does so here, not in the next one.
                    logs, state = jax.block_until_ready(made)
                if not isinstance(batch, StandIn):
                    self._logs = logs
        except BaseException:
            # Keras gives the model what it had after the last execution, whose memory
            # the first step has taken. That of this one's last step is whole, unless
            # that has failed as it ran.
            if not any(one.is_deleted() for one in jax.tree.leaves(state)):
                internals.keep_state_of_step(self._trained, state)
            raise
        return self._logs, state


def _require_values(model: keras.Model) -> None:
    if not all(map(internals.has_array, model.variables)):
        raise RingKerasError(
            f"[RK664] model '{model.name}' has lost its values in a step that failed: "
            "JAX had given their memory to it. Make the model anew, and load its "
            "weights from a file."
        )


@functools.cache
def make_train_functions_anew(cls: type[keras.Model]) -> None:
    """From now on, for another job, and for other optimizers; and steps count rows.

    What JAX has traced stays as it was, in a job that has ended, or alone.
    """
    method = cls.make_train_function

    @functools.wraps(method)
    def make_train_function(model: keras.Model, force: bool = False) -> None:
        made = model.train_function
        under_way = RanksFit.of(model)
        if under_way is not None and made == under_way._step and not force:
            return  # Keras's are in it.
        made_for = _traced_for(model)
        joins = under_way is not None and under_way.joins
        # What was traced for joined data is right for others, too.
        fitting = [(made_for, True)] if joins else [(made_for, True), (made_for, False)]
        if made is not None and made_for is not None:
            force = force or _made_for.get(made) not in fitting
        elif made is not None and made in _made_for:
            force = True
        if made_for is None or (made is not None and not force):
            method(model, force)
            return
        own = internals.replacement(model, "train_step")
        internals.replace(model, "train_step", _counting(model))
        try:
            # `JaxFit` takes the steps of an execution one by one.
            with internals.one_step_at_a_time(model):
                method(model, force)
        finally:
            internals.restore(model, "train_step")
            if own is not None:
                internals.replace(model, "train_step", own)
        _made_for[model.train_function] = made_for, joins

    cls.make_train_function = make_train_function


def _traced_for(model: keras.Model) -> Any:
    """Equal where what was traced for one is right for the other."""
    if not is_initialized():
        return None
    hooks = hooks_of(model)
    if not any(has_peers(hook.options.process_set) for hook in hooks):
        return None
    return current_job(), [hook.options for hook in hooks], moments_of(model)


@contextlib.contextmanager
def _added_losses_seen(model: keras.Model) -> Iterator[None]:
    """In it its `train_step` runs: JAX has no losses of layers but within that.

    Raises:
        RingKerasError: If there are any, beside a loss that adds up.
    """
    step = current_step()
    if not step.adds_up and not step.by_sample_weights:
        yield
        return
    stateless_call = model.stateless_call

    def call(*args: Any, **kwargs: Any) -> Any:
        found = stateless_call(*args, **kwargs)
        if kwargs.get("return_losses"):
            see_added_losses(found[-1])
        return found

    # An attribute would be Keras's, too.
    internals.replace(model, "stateless_call", call)
    try:
        yield
    finally:
        internals.restore(model, "stateless_call")


def _counting(model: keras.Model) -> Callable[..., Any]:
    """Its `train_step`, with this rank's weight in it; a new function each time.

    JAX would take what it has traced of an old one.
    """
    train_step = model.train_step
    of = weakref.ref(model)

    def counted_step(state: Any, data: Any) -> Any:
        trained = of()
        assert trained is not None
        under_way = RanksFit.of(trained)
        with contextlib.nullcontext() if under_way is None else under_way.in_step():
            if isinstance(data, StandIn):
                return _stood_in(trained, train_step, state, data.batch)
            with step_of(trained, data), _added_losses_seen(trained):
                return train_step(state, data)

    def step(state: Any, data: Any) -> Any:
        is_compiled = isinstance(jax.tree.leaves(state)[0], jax.core.Tracer)
        # A step begins when the one before it has ended.
        return (contained(counted_step) if is_compiled else counted_step)(state, data)

    return step


def _stood_in(
    model: keras.Model, train_step: Callable[..., Any], state: Any, batch: Any
) -> Any:
    """A step of a rank without a batch, whose own state stays.

    Without logs, so that XLA leaves out what nobody is to see.
    """
    with step_of(model, batch, counts=False):
        _, (trained, others, of_optimizers, _) = train_step(state, batch)
    own = set(map(id, own_state(model)))
    kept = [
        before if id(variable) in own else after
        for variable, before, after in zip(
            model.non_trainable_variables, state[1], others, strict=True
        )
    ]
    return {}, (trained, kept, of_optimizers, state[3])
