"""Meetings that are under way while the ranks go on: between a step and a later one.

What is here belongs to this process: no file has it. A flight that is forgotten has
changed nothing.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ring_keras.job.process_set import ProcessSet
from ring_keras.ops.departures import (
    DepartureKind,
    arrive,
    depart,
    forget_departed,
    new_slot,
)
from ring_keras.ops.step import in_order
from ring_keras.optimizers.run_if import run_if
from ring_keras.optimizers.senders import Senders
from ring_keras.optimizers.step_scope import reduction_step
from ring_keras.optimizers.thin_wire import ThinWire, own_part
from ring_keras.optimizers.wires import thin_wire
from ring_keras.values.compression import Compression

__all__ = ["Flight", "PlainFlight", "ThinFlight"]


class Flight:
    """The averages of one fragment.

    Args:
        number: Of the fragment.
        variables: Its variables.
        slots: How many collectives it may have under way.

    Attributes:
        is_under_way: A variable: whether something is.
        amount: Another one: how much this rank counts in it.
    """

    def __init__(self, number: int, variables: Sequence[Any], slots: int) -> None:
        self.is_under_way = tf.Variable(False, trainable=False)
        self.amount = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self._name = f"far_apart/fragment{number}"
        self._shapes = [tf.TensorShape(variable.shape) for variable in variables]
        self._dtypes = [tf.as_dtype(variable.dtype) for variable in variables]
        self._slots = [new_slot(self) for _ in range(slots)]

    def forget(self) -> None:
        """It never arrives. Not in a function."""
        self.is_under_way.assign(False)
        for slot in self._slots:
            forget_departed(slot)

    def _note_departure(self, amount: tf.Tensor) -> None:
        self.amount.assign(amount)
        self.is_under_way.assign(True)


class PlainFlight(Flight):
    """Averages that the engine makes, for each dtype by one collective."""

    def __init__(self, number: int, variables: Sequence[Any]) -> None:
        self._indices: dict[tf.DType, list[int]] = {}
        for index, variable in enumerate(variables):
            dtype = tf.as_dtype(variable.dtype)
            self._indices.setdefault(dtype, []).append(index)
        super().__init__(number, variables, len(self._indices))

    def depart(
        self,
        values: Sequence[tf.Tensor],
        amount: tf.Tensor,
        compression: Compression,
        process_set: ProcessSet,
        plan: int,
    ) -> None:
        """Starts it; collective. By a plan on which the ranks have agreed."""
        with reduction_step(process_set, plan):
            for slot, (dtype, indices) in zip(
                self._slots, self._indices.items(), strict=True
            ):
                depart(
                    slot,
                    "average",
                    [values[index] for index in indices],
                    name=f"{self._name}/{dtype.name}",
                    weight=amount,
                    compression=compression,
                    process_set=process_set,
                )
        self._note_departure(amount)

    def arrive(self, process_set: ProcessSet) -> list[tf.Tensor]:
        """Waits for it: one average for each variable."""
        # Also where waiting raises: nobody waits for that again.
        self.is_under_way.assign(False)
        averages: list[Any] = [None] * len(self._shapes)
        with reduction_step(process_set):
            for slot, (dtype, indices) in zip(
                self._slots, self._indices.items(), strict=True
            ):
                shapes = [self._shapes[index] for index in indices]
                arrived = arrive(slot, shapes, dtype, name=f"{self._name}/{dtype.name}")
                for index, average in zip(indices, arrived, strict=True):
                    averages[index] = average
        return averages


class ThinFlight(Flight):
    """Averages on a wire that leaves residuals.

    Several exchanges are under way one after the other: of how much each rank counts,
    then those of the wire. All ranks begin each of them together, and wait for none
    before the step in which they go on.
    """

    def __init__(self, number: int, variables: Sequence[Any], wire: str) -> None:
        self._wire_name = wire
        self.exchange_count = 1 + len(self._wire.exchanges)
        super().__init__(number, variables, self.exchange_count)
        # What is averaged, until it is sent; then what the messages have not said,
        # which are the residuals when it ends, where it has not been forgotten.
        self._left = [
            tf.Variable(tf.zeros(shape), trainable=False) for shape in self._shapes
        ]
        self._exchange = tf.Variable(0, trainable=False, dtype=tf.int64)

    @property
    def _wire(self) -> ThinWire:
        return thin_wire(self._wire_name)

    def depart(
        self, values: Sequence[tf.Tensor], amount: tf.Tensor, senders: Senders | None
    ) -> None:
        """Starts it; collective. None send where this rank is alone."""
        self._keep([tf.cast(value, tf.float32) for value in values])
        if senders is not None:
            of_all = senders.amount(amount)
            if senders.process_set.included():
                with senders.step(), tf.device("CPU:0"):
                    self._send(0, tf.reshape(of_all, [1]), senders)
        self._exchange.assign(0)
        self._note_departure(amount)

    def go_on(
        self, number: int, residuals: Sequence[Any], senders: Senders | None
    ) -> None:
        """Takes what the exchange before `number` has given, and starts that one."""
        if senders is not None and senders.process_set.included():
            kept = [tf.convert_to_tensor(one) for one in self._left]
            with senders.step():
                if number == 1:
                    share = self._share(senders)
                    owed = [tf.convert_to_tensor(one) for one in residuals]
                    message, left = self._wire.begin(
                        kept, owed, share, senders.process_set
                    )
                else:
                    message, left = self._wire.go_on(
                        self._receive(number - 1, senders), kept, senders.process_set
                    )
                self._send(number, message, senders)
            self._keep(left)
        self._exchange.assign(number)

    def arrive(
        self, residuals: Sequence[Any], senders: Senders | None
    ) -> list[tf.Tensor]:
        """Waits for it: one average for each variable; and sets the residuals."""
        self.is_under_way.assign(False)
        for number in range(1, self.exchange_count):
            with in_order():
                go_on = functools.partial(self.go_on, number, residuals, senders)
                run_if(self._exchange < number, go_on)
        with in_order():
            sums = [tf.convert_to_tensor(one) for one in self._left]
            left = [tf.convert_to_tensor(one) for one in residuals]
            if senders is None:
                sums = own_part(sums, left, tf.constant(1.0))
                left = [tf.zeros_like(one) for one in left]
            else:
                if senders.process_set.included():
                    left = sums
                    with senders.step():
                        sums = self._wire.end(
                            self._receive(self.exchange_count - 1, senders),
                            self._shapes,
                            senders.process_set,
                        )
                sums = senders.hand_on(sums)
        for residual, one in zip(residuals, left, strict=True):
            residual.assign(one)
        return [tf.cast(s, dtype) for s, dtype in zip(sums, self._dtypes, strict=True)]

    def _share(self, senders: Senders) -> tf.Tensor:
        """This rank's part of all amounts; 0 if all are."""
        with tf.device("CPU:0"):
            amounts = self._receive(0, senders)
            own = amounts[senders.process_set.rank()]
            return tf.math.divide_no_nan(own, tf.reduce_sum(amounts))

    def _send(self, number: int, message: tf.Tensor, senders: Senders) -> None:
        kind = self._kind(number)
        depart(
            self._slots[number],
            kind,
            [message],
            name=f"{self._name}/{number}",
            process_set=senders.process_set,
        )

    def _receive(self, number: int, senders: Senders) -> tf.Tensor:
        size = senders.process_set.size()
        shape, dtype = tf.TensorShape([size]), tf.float64
        if number:
            shape, dtype = self._wire.received(number - 1, self._shapes, size)
        name = f"{self._name}/{number}"
        return arrive(self._slots[number], [shape], dtype, name=name)[0]

    def _kind(self, number: int) -> DepartureKind:
        return self._wire.exchanges[number - 1] if number else "allgather"

    def _keep(self, left: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self._left, left, strict=True):
            variable.assign(value)
