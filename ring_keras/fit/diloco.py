"""An optimizer whose ranks train apart, and meet every so many steps."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ring_keras import keras_internals as internals
from ring_keras.callbacks.prepared_fits import prepare_fits
from ring_keras.fit.diloco_arguments import (
    check_arguments,
    check_pace,
    check_variables,
)
from ring_keras.fit.fragment import Fragment
from ring_keras.fit.inner_option import FixedOption, InnerOption
from ring_keras.fit.windows import Window, fragments_of
from ring_keras.ops.allreduce import allreduce
from ring_keras.ops.step import collectives_allowed, in_order
from ring_keras.optimizers.extra_batches import COMMON, OWN, ExtraBatches
from ring_keras.optimizers.fused_update import FusedUpdate
from ring_keras.optimizers.hooking import install_hook
from ring_keras.optimizers.meeting_hook import MeetingHook
from ring_keras.optimizers.meeting_log import MeetingLog
from ring_keras.optimizers.reduction_options import ReductionOptions
from ring_keras.optimizers.run_if import run_if
from ring_keras.optimizers.step_scope import current_step
from ring_keras.optimizers.wires import THIN_WIRES
from ring_keras.optimizers.wrapper_hook import all_suspended
from ring_keras.values.compression import Compression
from ring_keras.values.reduce_op import ReduceOp

__all__ = ["DiLoCo"]


@keras.saving.register_keras_serializable("ring_keras")
class DiLoCo(keras.optimizers.Optimizer):  # type: ignore[misc]  # Untyped.
    """Trains each rank apart, and has the ranks meet every `sync_every` updates.

    For ranks between which the network is slow: they exchange as many bytes as in one
    step of `DistributedOptimizer`, once in `sync_every` updates. In between each rank
    applies its own gradients, by the optimizer `inner`. Where the ranks meet, they
    average by how much their weights have changed since they met before, each rank
    weighted by the examples that it has trained on (in a loop of your own, by its
    steps). The optimizer `outer` applies that average to the weights of before, as if
    it were a gradient. So all ranks go on with the same weights, bit for bit.

    In `fit` several ranks also meet at the end of every epoch's steps, before
    validation and before callbacks save anything. In a loop of your own, call `meet()`
    before you evaluate or save.

    The method is that of Douillard et al., arXiv:2311.08105. For ranks that take the
    plain average of their weights (local SGD) see `DistributedOptimizer`.

    The optimizer's state, with the weights of the last meeting, is saved and loaded
    with the model; to load it, call `ring_keras.init()` first. What `inner` keeps, such
    as Adam's moments, is each rank's own; `fit` begins with the first rank's.

    Its learning rate, clipping, weight decay and what is left out of that are those of
    `inner`, and can be set by either. Other options are given to `inner` when it is
    made.

    Examples:
        >>> optimizer = ring.DiLoCo(keras.optimizers.AdamW(0.01), sync_every=2)
        >>> model.compile(optimizer, loss="mse")
        >>> mine = ring.data.shard((x, y), seed=1)
        >>> history = model.fit(*mine, batch_size=4, epochs=2, verbose=0)

    Args:
        inner: The optimizer of the steps between two meetings. A `LossScaleOptimizer`
            belongs here, and none around this optimizer.
        outer: The optimizer of the meetings, not built yet. Defaults to
            `keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)`.
        sync_every: The number of updates of `inner` from one meeting to the next. The
            same on every rank, as are the settings of `outer`. With
            `gradient_accumulation_steps`, an update takes so many batches.
        apart: What trains apart: each of the `"ranks"`, or each of the `"hosts"`, whose
            ranks average their gradients in every step and stay equal, bit for bit. A
            host then counts as one rank with the batches of all of its ranks, and with
            the wires `"int8"` and `"top-k"` its first rank sends for all. The same on
            every rank.
        wire: How changes of weights travel. `"float32"`: as they are. `"bfloat16"`:
            rounded, between hosts. `"int8"`: a quarter of the bytes; every 256 values
            have a scale in common. `"top-k"`: of each variable the largest 32nd. What
            the last two leave out is added to what the rank sends the next time, and
            for that they keep one more copy of the weights. The same on every rank.
        fragments: The number of parts of about the same size, of whole variables, each
            of which meets every `sync_every` updates, one after the other: so a meeting
            sends so much less, that much more often. The same on every rank.
        overlap_steps: The ranks go on for so many updates while a meeting's averages
            are under way. What comes of them is then mixed half and half with what
            their own weights have become (Douillard et al., arXiv:2501.18512). The same
            on every rank, and fewer than `sync_every`. With `"int8"` and `"top-k"` the
            first fifth of them is for how much each rank has trained, and the rest for
            one message, of `"int8"` in halves for two; with fewer than three (two for
            `"top-k"`) ranks wait for the first of it. They keep another copy of the
            weights. 0: they wait for all.
        pace: How many batches this rank takes for each that `fit` counts, as where
            hosts are of different speed. `"common"`: one, as every rank. `"own"`: as
            many as it can while the slowest rank takes one; `fit` measures that and
            asks all ranks. Or this rank's own number, which may differ from that of
            others, who must have numbers, too. The batches beside the counted one are
            *extra*: `inner` applies them and they weigh in the average, but
            `steps_per_epoch`, callbacks and `sync_every` do not count them. Only in
            `fit`, of a `tf.data.Dataset` without an end and with `steps_per_epoch`.
        name: The name of the optimizer.

    Raises:
        ValueError: If an argument is wrong, or an optimizer cannot be used here.
    """

    clipnorm = InnerOption()
    clipvalue = InnerOption()
    global_clipnorm = InnerOption()
    weight_decay = InnerOption()
    # Keras would make variables for some of these in the outer optimizer, too.
    ema_momentum = FixedOption()
    ema_overwrite_frequency = FixedOption()
    gradient_accumulation_steps = FixedOption()
    loss_scale_factor = FixedOption()
    use_ema = FixedOption()

    def __init__(
        self,
        inner: keras.optimizers.Optimizer | str,
        outer: keras.optimizers.Optimizer | str | None = None,
        *,
        sync_every: int,
        apart: str = "ranks",
        wire: str = "float32",
        fragments: int = 1,
        overlap_steps: int = 0,
        pace: str | int = COMMON,
        name: str = "diloco",
    ) -> None:
        # As Keras's own optimizers around others, it has no learning rate itself.
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer: Any = keras.optimizers.get(inner)
        self.outer_optimizer: Any = keras.optimizers.get(outer or _default_outer())
        self.sync_every = sync_every
        self.apart = apart
        self.wire = wire
        self.fragments = fragments
        self.overlap_steps = overlap_steps
        check_arguments(
            self.inner_optimizer,
            self.outer_optimizer,
            sync_every=sync_every,
            apart=apart,
            wire=wire,
            fragments=fragments,
            overlap_steps=overlap_steps,
            pace=pace,
        )
        self._pace = pace
        self.extra_batches = ExtraBatches(name)
        # As it is made: `fit` gives all ranks the first one's learning rate.
        self._outer_in_words = _in_words(self.outer_optimizer)
        compression = Compression.bf16 if wire == "bfloat16" else Compression.none
        options = ReductionOptions(compression=compression, meets=True)
        self._hook = MeetingHook(self, options, install_hook)
        self._hook.install()
        prepare_fits()

    def build(self, variables: Sequence[Any]) -> None:
        """Creates all variables, also those of both optimizers."""
        variables = list(variables)
        own_name = f"{type(self).__name__} '{self.name}'"
        check_variables(own_name, self.wire, self.fragments, variables)
        steps = self.add_variable((), dtype="int64", name="steps_apart")
        self.log.prepare()
        extra = None
        if self.is_paced:
            # Beside the others, which are those of every file so far.
            extra = self.add_variable((), dtype="int64", name="extra_apart")
            self.extra_batches.prepare()
        self._window = Window(self, self._iterations, steps, extra)
        self._amounts_apart = [
            self.add_variable((), dtype="float64", name="amount_apart")
            for _ in range(self.fragments)
        ]
        self._met = [self.add_variable_from_reference(v, "met") for v in variables]
        self._residuals = []
        if self.wire in THIN_WIRES:
            self._residuals = [
                self.add_variable(v.shape, dtype="float32", name="residual")
                for v in variables
            ]
        self._fragments = self._divided(variables)
        if self.overlap_steps:
            self._hook.prepare_flights(
                [fragment.variables for fragment in self._fragments], self.wire
            )
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        for optimizer in internals.innermost([self.inner_optimizer]):
            FusedUpdate(optimizer, wanted=True).install()
        self.outer_optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self) -> list[keras.Variable]:
        """Its own, and those of both optimizers."""
        return [
            *self._variables,
            *self.inner_optimizer.variables,
            *self.outer_optimizer.variables,
        ]

    @property
    def kept_apart(self) -> list[keras.Variable]:
        """Those of `variables` that each rank has its own values of."""
        return [
            *([self._window.extra] if self.is_paced else ()),
            *self._amounts_apart,
            *self.residuals,
            *self.inner_optimizer.variables,
            *internals.unfiled_state([self.inner_optimizer]).values(),
        ]

    @property
    def own_variables(self) -> list[keras.Variable]:
        """What each rank has its own values of between two meetings; with weights.

        Not learning rates: who sets them does so on all ranks.
        """
        if not self.built:
            return []
        innermost = internals.innermost([self.inner_optimizer])
        rates = {id(one.learning_rate) for one in innermost}
        every = [*self._trainable_variables, *self.kept_apart]
        return [variable for variable in every if id(variable) not in rates]

    @property
    def residuals(self) -> list[keras.Variable]:
        """What this rank's parts of the averages so far have lacked, by variable."""
        return self._residuals if self.built else []

    @property
    def is_apart(self) -> bool:
        """Whether this rank has taken a step since it has met the others."""
        return bool(self.built and self._window.has_trained())

    @property
    def pace(self) -> str | int:
        """How many batches this rank takes for each that `fit` counts.

        A file has that of the rank that wrote it. May be set between two calls of
        `fit`, of which a running one takes no notice, but not from or to `"common"`,
        where a file has other variables.
        """
        return self._pace

    @pace.setter
    def pace(self, pace: str | int) -> None:
        check_pace(pace, self.apart, was=self._pace if self.built else None)
        self._pace = pace

    @property
    def is_paced(self) -> bool:
        """Whether ranks may take different numbers of batches."""
        return self._pace != COMMON

    @property
    def steps_counted(self) -> int | None:
        """How many steps all ranks have taken; None if `inner` has taken as many."""
        return int(self._iterations) if self.is_paced else None

    @property
    def batches_apart(self) -> int:
        """How many counted ones there are from one meeting to the next."""
        (innermost,) = internals.innermost([self.inner_optimizer])
        return self.sync_every * (innermost.gradient_accumulation_steps or 1)

    @property
    def log(self) -> MeetingLog:
        """What the last meetings were."""
        return self._hook.log

    def meeting_nbytes(self, number: int) -> float:
        """The bytes that each rank, or host, sends when a fragment meets."""
        return self._hook.sent_nbytes(self._fragments[number].variables, self.wire)

    def updates_to_meeting(self, most_batches: int | None = None) -> int:
        """How many updates there are from now to the next meeting.

        Args:
            most_batches: After so many all meet in any case; None: there is no such
                place.
        """
        batches = self.batches_apart
        left, waiting, per_update = batches, 0, batches // self.sync_every
        if self.built:
            place = int(self._window.place())
            places = (due for _, due in self._window.due(self._fragments))
            left = min((due - place - 1) % batches + 1 for due in places)
            waiting = int(self._iterations) % per_update
        if most_batches is not None:
            left = min(left, most_batches)
        return (waiting + left) // per_update

    @property
    def terms(self) -> dict[str, Any]:
        """What the ranks must have the same of to meet: plain values, by name."""
        return {
            "sync_every": self.sync_every,
            "the number of batches between two meetings": self.batches_apart,
            "the optimizer of the meetings": self._outer_in_words,
            "apart": self.apart,
            "wire": self.wire,
            "fragments": self.fragments,
            "overlap_steps": self.overlap_steps,
            "pace": self._pace if self._pace in (COMMON, OWN) else "a number",
        }

    @property
    def learning_rate(self) -> Any:
        """That of the optimizer inside."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        """The number of updates that the optimizer inside has made."""
        return self.inner_optimizer.iterations

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Takes a step with this rank's gradients, and meets the others if it is time.

        Collective where it meets, and the first time.

        Raises:
            RingKerasError: If there is a `pace` and this is not in `fit`.
        """
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not self.built:
            if trainable_variables is None:
                super().apply(grads)  # Keras says what to do.
                return
            self.build(trainable_variables)
        with collectives_allowed():
            self._apply_and_meet(grads, trainable_variables)

    def _apply_and_meet(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None
    ) -> None:
        amount = self._hook.begin_step([one.variables for one in self._fragments])
        is_extra = self.extra_batches.is_extra() if self.is_paced else None
        step = current_step()
        present = None if step is None else step.present
        # Where data of unknown length end, TensorFlow may run what needs no batch, and
        # ranks would come to count other steps.
        after = tf.control_dependencies([g for g in grads if tf.is_tensor(g)])
        with in_order(), after:
            run_if(tf.logical_not(self._window.has_trained()), self._note_met)
            if self._hook.hosts is not None:
                grads, present = self._hook.hosts.average_gradients(
                    grads,
                    trainable_variables or self._trainable_variables,
                    amount,
                    present,
                )
            with all_suspended(self):
                run_if(
                    present,
                    lambda: self.inner_optimizer.apply(grads, trainable_variables),
                )
            self._window.count(is_extra)
            for apart in self._amounts_apart:
                apart.assign_add(tf.cast(amount, tf.float64))
            place = self._window.place()
            begin = Fragment.depart if self.overlap_steps else self._meet
            parts = [
                (due, functools.partial(begin, fragment))
                for fragment, due in self._window.due(self._fragments)
            ]
            parts += [
                (due, functools.partial(_if_under_way, action, fragment))
                for later, action in self._later()
                for fragment, due in self._window.due(self._fragments, later)
            ]

            def take_part() -> None:
                for due, part in parts:
                    with in_order():
                        run_if(place == due, part)

            is_due = tf.reduce_any(
                place == tf.constant([d for d, _ in parts], place.dtype)
            )
            # An extra batch is at the place of the counted one before.
            is_due = is_due if is_extra is None else is_due & ~is_extra
            # Together, as a step pays for each condition, also where nothing is due.
            with in_order():
                run_if(is_due, take_part)

    def meet(self) -> None:
        """Gives all ranks the same weights now, unless they have the same.

        Collective: all ranks must call it, after as many meetings. The next one comes
        `sync_every` updates later.
        """
        if not self.built:
            return
        amounts = [self._unsent_amount(fragment) for fragment in self._fragments]
        apart = [self._window.has_trained(), *(one > 0 for one in amounts)]
        with in_order():
            flags = allreduce(
                tf.cast(tf.stack(apart), tf.int32),
                ReduceOp.MAX,
                name="far_apart/is_apart",
                process_set=self._hook.process_set,
            )
            is_apart, *are_apart = tf.unstack(flags > 0)
            run_if(is_apart, functools.partial(self._meet_all, are_apart))

    def drop_flights(self) -> None:
        """Forgets the meetings that have begun and not ended.

        All ranks must: then nothing is lost, as the next ones have it all.
        """
        self._hook.drop_flights()

    def note_left(self) -> None:
        """A `fit` is over, maybe by an error between two meetings."""
        self._hook.forget_left()
        if self.is_apart:
            self._hook.note_left(int(self._iterations), self._trainable_variables)

    def weights_were_set(self) -> bool:
        """Whether somebody has, after a `fit` that was left between two meetings."""
        return self.is_apart and self._hook.were_set_since(
            int(self._iterations), self._trainable_variables
        )

    def begin_window(self) -> None:
        """From here, and with the weights that there are, changes are counted."""
        self.drop_flights()
        for fragment in self._fragments:
            fragment.forget_own()
        self._window.begin()

    def go_on_with(self, own: Mapping[Hashable, Any] | None) -> None:
        """Takes this rank's place in a window, where all have one rank's variables.

        A rank that has taken as many steps as that one goes on with its own. One that
        has missed some keeps what has not met since.

        Args:
            own: What its variables were, by their keys; None if it begins here.
        """
        if not self.built:
            return
        self.drop_flights()

        def put_back(variables: Sequence[Any]) -> None:
            assert own is not None
            for variable in variables:
                variable.assign(own[internals.variable_key(variable)])

        def is_as_before(variables: Sequence[Any]) -> bool:
            return own is not None and all(
                np.array_equal(variable, own[internals.variable_key(variable)])
                for variable in variables
            )

        if is_as_before([self._iterations, self._window.steps]):
            put_back(self.own_variables)
            return
        for fragment in self._fragments:
            if self.is_apart and is_as_before(fragment.met):
                put_back([*fragment.variables, fragment.apart, *fragment.residuals])
                continue
            if self.is_apart:
                fragment.return_to_met()
            fragment.forget_own()

    def load_own_variables(self, store: Any) -> None:
        """Also forgets the meetings that are under way: they are of other weights."""
        super().load_own_variables(store)
        self._hook.forget_left()
        self.drop_flights()

    def _meet_all(self, are_apart: Sequence[tf.Tensor]) -> None:
        # This rank may have taken no step, where another one has.
        run_if(tf.logical_not(self._window.has_trained()), self._note_met)
        if not self._is_in_turn():
            self._meet(self._fragments[0])
            return
        for fragment, is_apart in zip(self._fragments, are_apart, strict=True):
            if self.overlap_steps:
                with in_order():
                    run_if(fragment.is_under_way(), fragment.merge)
            with in_order():  # Momentum would move what has just met.
                run_if(is_apart, fragment.meet)
            run_if(tf.logical_not(is_apart), fragment.return_to_met)
        self._window.begin()

    def _meet(self, fragment: Fragment) -> None:
        fragment.meet()
        if not self._is_in_turn():
            self._window.begin()

    def _later(self) -> Iterator[tuple[int, Callable[[Fragment], None]]]:
        """What follows a meeting's begin after so many updates, in their order."""
        if not self.overlap_steps:
            return
        # How much each rank counts is a short message, for which none of them waits if
        # they are not too far from each other; the rest have the same time.
        count = self._hook.exchanges_of(0)
        # With few updates it is waited for at once, so that the rest has those.
        first = -(-self.overlap_steps // 5) if self.overlap_steps >= count else 0
        for number in range(1, count):
            left = self.overlap_steps - first
            later = first + -(-left * (number - 1) // (count - 1))
            # Else what waits for the averages does that first.
            if later < self.overlap_steps:
                yield later, functools.partial(Fragment.go_on, exchange=number)
        yield self.overlap_steps, Fragment.merge

    def _unsent_amount(self, fragment: Fragment) -> tf.Tensor:
        if self.overlap_steps:
            return fragment.unsent_amount()
        return tf.convert_to_tensor(fragment.apart)

    def _is_in_turn(self) -> bool:
        """Whether a window has no moment at which all have just met."""
        return self.fragments > 1 or self.overlap_steps > 0

    def scale_loss(self, loss: Any) -> Any:
        """As the optimizer inside does."""
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Any] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Has the optimizer inside leave these out."""
        for optimizer in internals.innermost([self.inner_optimizer]):
            optimizer.exclude_from_weight_decay(var_list, var_names)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets all `variables`; forgets the meetings that are under way.

        Raises:
            ValueError: If it is not built, or these are of another number or shape.
        """
        if not self.built:
            super().set_weights(weights)  # Keras says what to do.
        pairs = list(zip(self.variables, weights, strict=True))
        for variable, weight in pairs:
            variable.assign(weight)
        self._hook.forget_left()
        self.drop_flights()

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """As the optimizer inside does."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Its arguments."""
        return {
            "name": self.name,
            "inner": keras.saving.serialize_keras_object(self.inner_optimizer),
            "outer": keras.saving.serialize_keras_object(self.outer_optimizer),
            "sync_every": self.sync_every,
            "apart": self.apart,
            "wire": self.wire,
            "fragments": self.fragments,
            "overlap_steps": self.overlap_steps,
            "pace": self._pace,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "DiLoCo":
        """Makes one of the arguments that `get_config` returns."""
        config = dict(config)
        for key in ("inner", "outer"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        return cls(**config)

    def _note_met(self) -> None:
        """The ranks have the same weights, and are about to train apart."""
        for met, variable in zip(self._met, self._trainable_variables, strict=True):
            met.assign(variable)

    def _divided(self, variables: Sequence[Any]) -> list[Fragment]:
        """Those that meet in turn."""
        return [
            Fragment(
                number,
                [variables[index] for index in indices],
                [self._met[index] for index in indices],
                self._amounts_apart[number],
                [self._residuals[index] for index in indices if self._residuals],
                self._hook,
                self.outer_optimizer,
                self.wire,
                is_in_turn=self._is_in_turn(),
                ends_window=number == self.fragments - 1,
            )
            for number, indices in enumerate(fragments_of(variables, self.fragments))
        ]


def _if_under_way(action: Callable[[Fragment], None], fragment: Fragment) -> None:
    run_if(fragment.is_under_way(), functools.partial(action, fragment))


def _default_outer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)


def _in_words(optimizer: keras.optimizers.Optimizer) -> str:
    """Its class and its settings, but for the name that Keras has given it."""
    settings = keras.saving.serialize_keras_object(optimizer)["config"]
    words = (f"{key}={settings[key]}" for key in sorted(settings) if key != "name")
    return f"{type(optimizer).__name__}({', '.join(words)})"
