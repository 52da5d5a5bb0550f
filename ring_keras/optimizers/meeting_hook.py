"""The hook of an optimizer whose ranks train apart, and meet every so many steps."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.errors import RankMismatchError, RingKerasError
from ring_keras.job.job import current_job
from ring_keras.job.process_set import ProcessSet, generation
from ring_keras.keras_internals import calls
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.ops.arguments import to_communicator
from ring_keras.ops.grouped_allreduce import (
    PendingAllreduce,
    allreduce_start,
    allreduce_wait,
)
from ring_keras.ops.objects import allgather_object
from ring_keras.ops.reduce_op import ReduceOp
from ring_keras.optimizers.hosts_apart import HostsApart
from ring_keras.optimizers.meeting_log import MeetingLog
from ring_keras.optimizers.optimizer_hook import OptimizerHook, Terms
from ring_keras.optimizers.step_scope import (
    StepWeight,
    current_step,
    reduction_step,
)
from ring_keras.optimizers.wires import THIN_WIRES, average_thinly, sent_nbytes

__all__ = ["MeetingHook", "meeting_optimizers", "require_same_terms"]


class MeetingHook(OptimizerHook):
    """Reduces no gradients, but what the ranks' weights have become since they met.

    The optimizer calls it: it takes its steps itself, by another one inside. It is a
    hook so that all who ask whether, and with whom, an optimizer trains find it.
    """

    _flights: Sequence["_Flight"] = ()
    _agreed_in: int | None = None
    """The generation whose ranks have agreed on the terms."""

    hosts: HostsApart | None = None
    """Where hosts train apart, and not each rank; known once the ranks have agreed."""

    _are_between_hosts = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log = MeetingLog()

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
        if self._flights and _is_compiled():
            raise RingKerasError(
                "[RK347] "
                f"optimizer '{self._optimizer.name}', with overlap_steps, keeps "
                "averages between steps, which XLA cannot. Use compile(..., "
                "jit_compile=False), or leave out overlap_steps."
            )
        step = current_step()
        if step is not None:
            # Each rank keeps its gradients to itself, as it was told to.
            step.note_reduced(v for variables in fragments for v in variables)
        if self._agreed_in != generation():
            self.hosts = None  # Their process sets were of another job.
        if self._reducer.active:
            self._agree(self.terms)
            # Now, as the weights differ when they meet: they are compared with it.
            for variables in fragments:
                self._reducer.agree(variables)
        weight = self._reducer.step_weight()
        return 1.0 if weight is None else weight.amount

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
        if self.hosts is not None:
            averages, left = self.hosts.average_thinly(wire, values, left, amount)
        elif self._reducer.active:
            with reduction_step(self.process_set):
                share = weight.share() / self.process_set.size()
                averages, left = average_thinly(
                    wire, values, left, share, self.process_set
                )
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
        return tf.convert_to_tensor(self._flights[number].change_square)

    def prepare_flights(self, fragments: Sequence[Sequence[Any]]) -> None:
        """Before `depart`: makes what keeps averages between a step and another."""
        with tf.init_scope():
            self._flights = [_Flight.of(variables) for variables in fragments]

    def drop_flights(self) -> None:
        """Forgets the averages that are under way, as those of a `fit` that failed.

        Ranks that all do so lose nothing: their weights have not become those of the
        meeting, so what they have changed is in the next one.
        """
        for flight in self._flights:
            flight.is_under_way.assign(False)

    def depart(
        self,
        number: int,
        values: Sequence[tf.Tensor],
        variables: Sequence[Any],
        amount: tf.Tensor,
        change_square: tf.Tensor,
    ) -> None:
        """Starts what `arrive` waits for, in a later step; collective.

        Args:
            number: Of the fragment.
            values: See `average`, like the next.
            variables: See there.
            amount: See there.
            change_square: For the log.
        """
        flight = self._flights[number]
        with reduction_step(self.process_set):
            for dtype, indices in flight.indices.items():
                pending = allreduce_start(
                    [values[index] for index in indices],
                    ReduceOp.AVERAGE,
                    name=_flight_name(number, dtype),
                    weight=amount,
                    compression=self.options.compression,
                    process_set=self.process_set,
                )
                flight.handles[dtype].assign(pending.handle)
        flight.amount.assign(amount)
        flight.change_square.assign(change_square)
        flight.is_under_way.assign(True)

    def arrive(self, number: int, variables: Sequence[Any]) -> list[tf.Tensor]:
        """Waits for the averages of a fragment, one for each variable."""
        flight = self._flights[number]
        # Also where waiting raises: nobody waits for that again.
        flight.is_under_way.assign(False)
        averages: list[Any] = list(variables)
        for dtype, indices in flight.indices.items():
            pending = PendingAllreduce(
                flight.handles[dtype].read_value(),
                tf.as_dtype(dtype),
                tuple(tf.TensorShape(variables[index].shape) for index in indices),
                ReduceOp.AVERAGE.value,
                _flight_name(number, dtype),
                to_communicator(self.process_set),
            )
            for index, average in zip(indices, allreduce_wait(pending), strict=True):
                averages[index] = average
        return averages

    def _agree(self, terms: Terms) -> None:
        with tf.init_scope():
            # Else a graph of TensorFlow 1.
            if self._agreed_in == generation() or not tf.executing_eagerly():
                return
            everyones = allgather_object(
                (terms, current_job().host),
                name="far_apart/terms",
                process_set=self.process_set,
            )
            require_same_terms(
                self._optimizer.name,
                [theirs for theirs, _ in everyones],
                self.process_set,
            )
            hosts = [host for _, host in everyones]
            self._are_between_hosts = len(set(hosts)) > 1
            if self._optimizer.apart == "hosts":
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


@dataclasses.dataclass(frozen=True)
class _Flight:
    """The averages of a fragment, between their start and the step that waits.

    What is here belongs to this process: no file has it.

    Attributes:
        is_under_way: A variable: whether something is.
        amount: Another one: how much this rank counts in it.
        change_square: Another one: what the log is to know of it.
        handles: Variables, by the dtypes of what they stand for.
        indices: Positions in the fragment, in the same way.
    """

    is_under_way: tf.Variable
    amount: tf.Variable
    change_square: tf.Variable
    handles: dict[str, tf.Variable]
    indices: dict[str, list[int]]

    @classmethod
    def of(cls, variables: Sequence[Any]) -> "_Flight":
        indices: dict[str, list[int]] = {}
        for index, variable in enumerate(variables):
            dtype = tf.as_dtype(variable.dtype).name
            indices.setdefault(dtype, []).append(index)
        nothing = tf.raw_ops.EmptyTensorList(
            element_shape=tf.constant([], tf.int32),
            max_num_elements=0,
            element_dtype=tf.float32,
        )
        return cls(
            tf.Variable(False, trainable=False),
            tf.Variable(0.0, trainable=False, dtype=tf.float64),
            tf.Variable(0.0, trainable=False, dtype=tf.float64),
            {dtype: tf.Variable(nothing, trainable=False) for dtype in indices},
            indices,
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


def _is_compiled() -> bool:
    """Whether XLA compiles what is traced."""
    if tf.executing_eagerly():
        return False
    return is_for_xla(tf.compat.v1.get_default_graph())


def _flight_name(number: int, dtype: str) -> str:
    return f"far_apart/fragment{number}/{dtype}"


def meeting_optimizers(model: keras.Model) -> list[Any]:
    """Those of a model whose ranks meet every so many steps."""
    return [
        optimizer
        for optimizer in internals.optimizers_of(model)
        if isinstance(OptimizerHook.of(optimizer), MeetingHook)
    ]
