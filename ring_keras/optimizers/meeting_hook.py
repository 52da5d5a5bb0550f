"""The hook of an optimizer whose ranks train apart, and meet every so many steps."""

from collections.abc import Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, generation
from ring_keras.keras_internals import calls
from ring_keras.ops.join import needed_in_meetings
from ring_keras.optimizers.flights import PlainFlight, ThinFlight
from ring_keras.optimizers.hosts_apart import HostsApart
from ring_keras.optimizers.meeting_log import MeetingLog
from ring_keras.optimizers.optimizer_hook import OptimizerHook, Terms
from ring_keras.optimizers.senders import Senders
from ring_keras.optimizers.step_scope import StepWeight, current_step
from ring_keras.optimizers.summed_losses import refuse_summed_losses
from ring_keras.optimizers.wires import (
    THIN_WIRES,
    average_thinly,
    sent_nbytes,
    thin_wire,
)
from ring_keras.states.weight_digests import digests
from ring_keras.values.objects import allgather_object

__all__ = [
    "MeetingHook",
    "meeting_hooks",
    "meeting_optimizers",
    "require_same_terms",
]


class MeetingHook(OptimizerHook):
    """Reduces no gradients, but what the ranks' weights have become since they met.

    The optimizer calls it: it takes its steps itself, by another one inside. It is a
    hook so that all who ask whether, and with whom, an optimizer trains find it.
    """

    _flights: Sequence[PlainFlight | ThinFlight] = ()
    _plans: Sequence[int] = ()
    """Of the meeting of each fragment: the number on which the ranks have agreed."""

    _agreed_in: int | None = None
    """The generation whose ranks have agreed on the terms."""

    _left_with: tuple[int, list[int]] | None = None
    """The steps, and digests of the weights, with which a `fit` has left them apart."""

    hosts: HostsApart | None = None
    """Where hosts train apart, and not each rank; known once the ranks have agreed."""

    _are_between_hosts = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log = MeetingLog()

    @property
    def hosts_are_apart(self) -> bool:
        """Whether these train apart, and not each rank."""
        return bool(self._optimizer.apart == "hosts")

    @property
    def parts(self) -> Collection[ProcessSet]:
        """The ranks of this host, and the first ones of all hosts."""
        return () if self.hosts is None else self.hosts.process_sets

    @property
    def steps_ahead(self) -> int:
        """A meeting of each fragment departs; before the next, it arrives."""
        return len(self._flights)

    @property
    def terms(self) -> Terms:
        """Those of the optimizer."""
        terms: Terms = self._optimizer.terms
        return terms

    def _build(self, variables: Sequence[Any]) -> None:
        self._refuse_around()
        type(self._optimizer).build(self._optimizer, variables)

    def begin_step(self, fragments: Sequence[Sequence[Any]]) -> tf.Tensor | float:
        """Before each step of this rank; the first time collective.

        Args:
            fragments: The variables of each meeting.

        Returns:
            How much the step counts, as against those of other ranks.

        Raises:
            RankMismatchError: On every rank, if their terms or variables differ.
        """
        self._refuse_around()
        step = current_step()
        if step is not None:
            # Each rank keeps its gradients to itself, as it was told to.
            step.note_reduced(v for variables in fragments for v in variables)
        hosts = self.agree_on_hosts()
        if hosts is None and step is not None:
            refuse_summed_losses(self.op, [current_job().rank])
        if self._reducer.active:
            # Now, as the weights differ when they meet: they are compared with it.
            self._plans = [self._reducer.agree(variables) for variables in fragments]
        weight = self.step_weight()
        return 1.0 if weight is None else weight.amount

    def agree_on_hosts(self) -> HostsApart | None:
        """Makes `hosts`, with all else that ranks must agree on; returns them.

        Collective the first time.

        Raises:
            RankMismatchError: On every rank, if their terms differ.
        """
        if self._agreed_in != generation():
            self.hosts = None  # Their process sets were of another job.
        if self._reducer.active:
            self._agree(self.terms)
        return self.hosts

    def step_weight(self) -> StepWeight | None:
        """How much this rank counts in the current step; None for all alike."""
        return self._reducer.step_weight()

    def average(
        self,
        values: Sequence[tf.Tensor],
        variables: Sequence[Any],
        amount: tf.Tensor,
        wire: str,
        residuals: Sequence[Any],
    ) -> list[Any]:
        """The ranks' values, weighted; collective, and one step of the engine.

        Args:
            values: One for each variable.
            variables: Those that meet.
            amount: How much this rank counts.
            wire: How they travel, one of `WIRES`.
            residuals: Variables for what stays with this rank; none where nothing does.
        """
        weight = StepWeight(amount, self.process_set)
        if wire not in THIN_WIRES:
            return self._reducer.combine(values, variables, weight)
        left = [tf.convert_to_tensor(residual) for residual in residuals]
        averages = list(values)
        plan = self._reducer.agree(variables) if self._reducer.active else 0
        senders = self._senders(plan)
        if senders is not None:
            amount = senders.amount(amount)
            if senders.process_set.included():
                with senders.step():
                    share = senders.share(amount)
                    averages, left = average_thinly(
                        thin_wire(wire), values, left, share, senders.process_set
                    )
            averages = senders.hand_on(averages)
        else:
            averages = [
                value + tf.cast(one, value.dtype)
                for value, one in zip(values, left, strict=True)
            ]
            left = [tf.zeros_like(one) for one in left]
        for residual, one in zip(residuals, left, strict=True):
            residual.assign(one)
        return averages

    def sent_nbytes(self, variables: Sequence[Any], wire: str) -> float:
        """The bytes that each rank sends to others when these variables meet.

        Where hosts train apart, that each host sends. As if each were on a host of its
        own: ranks of one host share memory. See `wires.sent_nbytes`.
        """
        if not self._reducer.active:
            return 0
        size = self.process_set.size() if self.hosts is None else self.hosts.count
        if wire == "bfloat16" and not self._are_between_hosts:
            wire = "float32"
        return sent_nbytes(wire, variables, size)

    def is_under_way(self, number: int) -> tf.Tensor:
        """Whether `depart` has been called, and `arrive` not since."""
        return tf.convert_to_tensor(self._flights[number].is_under_way)

    def amount_under_way(self, number: int) -> tf.Tensor:
        """How much this rank counts in what is under way; 0 if nothing is."""
        flight = self._flights[number]
        nothing = tf.zeros([], tf.float64)
        return tf.where(flight.is_under_way, flight.amount, nothing)

    def change_under_way(self, number: int) -> tf.Tensor:
        """What `depart` was given of it for the log."""
        return tf.convert_to_tensor(self._changes_under_way[number])

    def prepare_flights(self, fragments: Sequence[Sequence[Any]], wire: str) -> None:
        """Before `depart`: makes what keeps averages between a step and another."""
        with tf.init_scope():
            self._flights = [
                ThinFlight(number, variables, wire)
                if wire in THIN_WIRES
                else PlainFlight(number, variables)
                for number, variables in enumerate(fragments)
            ]
            self._changes_under_way = [
                tf.Variable(0.0, trainable=False, dtype=tf.float64) for _ in fragments
            ]

    def drop_flights(self) -> None:
        """Forgets the averages that are under way, as those of a `fit` that failed.

        Ranks that all do so lose nothing: their weights have not become those of the
        meeting, so what they have changed is in the next one.
        """
        for flight in self._flights:
            flight.forget()

    def note_left(self, steps: int, weights: Sequence[Any]) -> None:
        """A `fit` has ended after so many steps, in which the ranks had not met."""
        self._left_with = steps, digests(weights)

    def forget_left(self) -> None:
        """There is no such `fit`, or what it has left is gone."""
        self._left_with = None

    def were_set_since(self, steps: int, weights: Sequence[Any]) -> bool:
        """Whether the weights are others after as many steps as were noted."""
        if self._left_with is None or self._left_with[0] != steps:
            return False
        return self._left_with[1] != digests(weights)

    def depart(
        self,
        number: int,
        values: Sequence[tf.Tensor],
        amount: tf.Tensor,
        change_square: tf.Tensor,
    ) -> None:
        """Starts what `arrive` waits for, in a later step; collective.

        Args:
            number: Of the fragment.
            values: See `average`, like the next.
            amount: See there.
            change_square: For the log.
        """
        self._changes_under_way[number].assign(change_square)
        flight = self._flights[number]
        plan = self._plans[number] if self._reducer.active else 0
        if isinstance(flight, ThinFlight):
            flight.depart(values, amount, self._senders(plan))
        else:
            compression = self.options.compression
            flight.depart(values, amount, compression, self.process_set, plan)

    def go_on(self, number: int, exchange: int, residuals: Sequence[Any]) -> None:
        """Between `depart` and `arrive`, where a flight takes several exchanges."""
        flight = self._flights[number]
        assert isinstance(flight, ThinFlight)
        flight.go_on(exchange, residuals, self._senders())

    def exchanges_of(self, number: int) -> int:
        """How many a flight takes, one after the other."""
        flight = self._flights[number]
        return flight.exchange_count if isinstance(flight, ThinFlight) else 1

    def arrive(self, number: int, residuals: Sequence[Any]) -> list[tf.Tensor]:
        """Waits for the averages of a fragment, one for each variable."""
        flight = self._flights[number]
        if isinstance(flight, ThinFlight):
            return flight.arrive(residuals, self._senders())
        return flight.arrive(self.process_set)

    def _senders(self, plan: int = 0) -> Senders | None:
        """Those on a thin wire; None where this rank is alone.

        Args:
            plan: That of the meeting, in its first exchange.
        """
        if self.hosts is not None:
            return self.hosts.senders
        return Senders(self.process_set, plan) if self._reducer.active else None

    def _agree(self, terms: Terms) -> None:
        with tf.init_scope():
            # Else a graph of TensorFlow 1.
            if self._agreed_in == generation() or not tf.executing_eagerly():
                return
            self.drop_flights()  # Those of another job never arrive.
            everyones = allgather_object(
                (current_job().rank, terms, current_job().host),
                name="far_apart/terms",
                process_set=self.process_set,
            )
            there = {rank for rank, _, _ in everyones}
            for joined in sorted(set(self.process_set.ranks) - there):
                raise needed_in_meetings(joined)
            require_same_terms(
                self._optimizer.name,
                [theirs for _, theirs, _ in everyones],
                self.process_set,
            )
            hosts = [host for _, _, host in everyones]
            self._are_between_hosts = len(set(hosts)) > 1
            if self.hosts_are_apart:
                self.hosts = HostsApart(hosts, self.process_set)
        self._agreed_in = generation()

    def _refuse_around(self) -> None:
        """It would skip steps by this rank's gradients, and so the ranks' meetings."""
        wrapper = calls.calling_loss_scale_optimizer()
        if wrapper is not None and self._optimizer in internals.inner_optimizers(
            wrapper
        ):
            raise RingKerasError(
                "[RK344] "
                f"optimizer '{self._optimizer.name}', with sync_every, is inside of a "
                "LossScaleOptimizer, which skips steps on the ranks whose gradients "
                "are not finite: the ranks would not meet. Put it inside, and have "
                "compile() add none: ring_keras.DiLoCo(keras.optimizers."
                "LossScaleOptimizer(inner), ...) and "
                "compile(..., auto_scale_loss=False)."
            )


def require_same_terms(
    name: str, everyones: Sequence[Terms], process_set: ProcessSet
) -> None:
    """Raises on every rank if the terms of an optimizer differ.

    Args:
        name: This rank's name of it.
        everyones: Of each rank.
        process_set: The ranks.

    Raises:
        RankMismatchError: Names the first that differ.
    """
    ranks = process_set.ranks
    for rank, theirs in zip(ranks, everyones, strict=True):
        for what in {**everyones[0], **theirs}:
            values = [one.get(what) for one in (everyones[0], theirs)]
            if values[0] != values[1]:
                raise RankMismatchError(
                    "[RK342] "
                    f"optimizer '{name}': {what} differs across ranks: rank {ranks[0]} "
                    f"has {values[0]}, rank {rank} has {values[1]}. Give every rank "
                    "the same, or the ranks would not meet."
                )


def meeting_optimizers(model: keras.Model) -> list[Any]:
    """Those of a model whose ranks meet every so many steps."""
    return [
        optimizer
        for optimizer in internals.optimizers_of(model)
        if isinstance(OptimizerHook.of(optimizer), MeetingHook)
    ]


def meeting_hooks(model: keras.Model) -> list[MeetingHook]:
    """Those of its `meeting_optimizers`."""
    hooks = map(OptimizerHook.of, meeting_optimizers(model))
    return [hook for hook in hooks if isinstance(hook, MeetingHook)]
