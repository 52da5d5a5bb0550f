"""Updates of variables in one pass over memory.

Keras updates a variable by a handful of TensorFlow's ops, Adam by a dozen, each of
which reads and writes all of it. One op does the same, rounding after rounding. XLA
makes one loop of Keras's ops by itself, so it gets those.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from ring_keras import _libraries
from ring_keras import keras_internals as internals
from ring_keras.keras_internals.graphs import is_for_xla
from ring_keras.optimizers.gradient_values import Gradient

__all__ = ["FusedUpdate", "PieceInPlace"]

# As the first element: they all are updated.
_ALL: Final = -1


# A variable of no more bytes is updated by one op with others like it, which spares
# TensorFlow some microseconds for each. One with more than that keeps a thread busy.
_SMALL_BYTES: Final = 64 << 10


class PieceInPlace(NamedTuple):
    """Elements of a variable, as many as there are of their gradient.

    Attributes:
        whole: The variable.
        begin: The first of them, in row-major order.
    """

    whole: Any
    begin: int


class _One(NamedTuple):
    """What an op updates, by what."""

    variable: tf.Variable
    begin: int
    states: list[tf.Variable]
    gradient: tf.Tensor


# Updates them by one op, at a rate.
_Update: TypeAlias = Callable[[Sequence[_One]], None]


@dataclass(frozen=True)
class _Kind:
    """Optimizers of Keras with one update.

    Attributes:
        numbers: Attributes that must be plain numbers. Of what is a tensor, or NumPy's,
            Keras's arithmetic makes other types.
        states: Attributes with what it keeps for each variable.
        begin: Makes the update of a step, for variables of a type, with its rate.
    """

    numbers: tuple[str, ...]
    states: tuple[str, ...]
    begin: Callable[[Any, tf.DType, tf.Tensor], _Update]


class FusedUpdate:
    """How an optimizer updates its variables.

    Args:
        optimizer: One that updates variables itself.
        wanted: Whether our ops are to do that; else Keras's do.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, *, wanted: bool) -> None:
        self._optimizer = optimizer
        self.wanted = wanted
        """Whether ops of ours may change variables: XLA has none of them."""
        # Of a subclass there is no telling what its update is.
        self._kind = _KINDS.get(type(optimizer)) if wanted else None

    def install(self) -> None:
        """Puts it into the optimizer, if it has something to do there."""
        if self._kind is not None and internals.UPDATE not in vars(self._optimizer):
            internals.replace(self._optimizer, internals.UPDATE, self.update)

    def update(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        """Updates what it can, and has Keras update the others.

        Keras is called without any, too, as where another rank has them all: Nadam has
        a product of all its steps, which it takes on there.

        Args:
            grads: The gradients.
            trainable_variables: Of each the variable, or a `PieceInPlace` that
                `takes_piece` has seen.
            learning_rate: Of this step.
        """
        kind = self._kind_now(learning_rate)
        fused: dict[tf.DType, list[_One]] = {}
        others = []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            is_piece = isinstance(variable, PieceInPlace)
            whole, begin = variable if is_piece else (variable, _ALL)
            plain = internals.tensorflow_variable(whole)
            states = [] if kind is None else self._states(kind, plain)
            if kind is None or not _can_fuse(
                gradient, plain, states, is_piece=is_piece
            ):
                others.append((gradient, variable))
                continue
            dtype = plain.dtype.base_dtype
            one = _One(plain, begin, states, tf.cast(gradient, dtype))
            fused.setdefault(dtype, []).append(one)
        for dtype, ones in fused.items():
            assert kind is not None
            rate = keras.ops.cast(learning_rate, dtype.name)
            update = kind.begin(self._optimizer, dtype, rate)
            for together in _by_op(ones):
                update(together)
        if others or not fused:
            type(self._optimizer)._backend_update_step(
                self._optimizer,
                [gradient for gradient, _ in others],
                [variable for _, variable in others],
                learning_rate,
            )

    def takes_piece(
        self, gradient: Gradient, piece: PieceInPlace, learning_rate: Any
    ) -> bool:
        """Whether `update` takes it, now that the gradient is so."""
        kind = self._kind_now(learning_rate)
        if kind is None or not isinstance(gradient, tf.Tensor):
            return False
        plain = internals.tensorflow_variable(piece.whole)
        return _can_fuse(gradient, plain, self._states(kind, plain), is_piece=True)

    def _kind_now(self, learning_rate: Any) -> _Kind | None:
        """That of what is traced or run now; None: Keras updates everything."""
        kind, optimizer = self._kind, self._optimizer
        if kind is None or tf.distribute.has_strategy():
            return None
        if any(type(getattr(optimizer, n)) not in (int, float) for n in kind.numbers):
            return None
        # Without momentum there are two ops in all, and nothing is gained.
        if not getattr(optimizer, "momentum", True):
            return None
        if getattr(optimizer, "amsgrad", False):
            return None
        # Somebody's own.
        if internals.UPDATE_STEP in vars(optimizer):
            return None
        if tf.convert_to_tensor(learning_rate).shape.rank != 0:
            return None
        if not tf.executing_eagerly() and is_for_xla(tf.compat.v1.get_default_graph()):
            return None
        return kind

    def _states(self, kind: _Kind, variable: tf.Variable) -> list[tf.Variable]:
        optimizer = self._optimizer
        index = internals.private(optimizer, internals.VARIABLE_INDEX)(variable)
        states = [internals.private(optimizer, name)[index] for name in kind.states]
        return [internals.tensorflow_variable(state) for state in states]


def _can_fuse(
    gradient: Gradient,
    variable: tf.Variable,
    states: Sequence[tf.Variable],
    *,
    is_piece: bool,
) -> bool:
    """Whether a gradient can update a variable, or a piece of it."""
    dtype = variable.dtype.base_dtype
    return (
        isinstance(gradient, tf.Tensor)
        and dtype in (tf.float32, tf.float64)
        and gradient.dtype in (dtype, tf.float16, tf.bfloat16)
        # Keras's ops take one number for all elements, too.
        and gradient.shape.is_fully_defined()
        and (is_piece or gradient.shape == variable.shape)
        and all(state.shape == gradient.shape for state in states)
        # There are no kernels for GPUs, whose memory is fast.
        and "CPU" in variable.device
        and all(state.device == variable.device for state in states)
    )


def _by_op(ones: Sequence[_One]) -> Iterator[list[_One]]:
    """Those that one op updates: all small ones on a device, or a larger one."""
    small: dict[str, list[_One]] = {}
    for one in ones:
        nbytes = one.gradient.shape.num_elements() * one.gradient.dtype.size
        if nbytes > _SMALL_BYTES:
            yield [one]
            continue
        together = small.setdefault(one.variable.device, [])
        if any(one.variable is other.variable for other in together):
            yield small.pop(one.variable.device)  # It is updated twice.
            together = small[one.variable.device] = []
        together.append(one)
    yield from small.values()


def _handles(variables: Iterable[tf.Variable]) -> list[tf.Tensor]:
    return [variable.handle for variable in variables]


def _momentum(optimizer: Any, dtype: tf.DType, rate: tf.Tensor) -> _Update:
    """Of `keras.optimizers.SGD`."""
    decay = keras.ops.cast(optimizer.momentum, dtype.name)

    def update(ones: Sequence[_One]) -> None:
        _libraries.ops().ring_keras_update_by_momentum(
            variables=_handles(one.variable for one in ones),
            momenta=_handles(one.states[0] for one in ones),
            rate=rate,
            decay=decay,
            gradients=[one.gradient for one in ones],
            begins=[one.begin for one in ones],
            nesterov=bool(optimizer.nesterov),
        )

    return update


def _adam(optimizer: Any, dtype: tf.DType, rate: tf.Tensor) -> _Update:
    """Of `keras.optimizers.Adam` and `AdamW`, whose decay comes before."""
    # As Keras computes it: `cast` makes float32 of a number before anything else, where
    # arithmetic does not.
    ops = keras.ops
    step = ops.cast(optimizer.iterations + 1, dtype.name)
    first = ops.power(ops.cast(optimizer.beta_1, dtype.name), step)
    second = ops.power(ops.cast(optimizer.beta_2, dtype.name), step)
    rate = rate * ops.sqrt(1 - second) / (1 - first)

    def update(ones: Sequence[_One]) -> None:
        _libraries.ops().ring_keras_update_by_adam(
            variables=_handles(one.variable for one in ones),
            momenta=_handles(one.states[0] for one in ones),
            velocities=_handles(one.states[1] for one in ones),
            rate=rate,
            momentum_share=tf.constant(1 - optimizer.beta_1, dtype),
            velocity_share=tf.constant(1 - optimizer.beta_2, dtype),
            epsilon=tf.constant(optimizer.epsilon, dtype),
            gradients=[one.gradient for one in ones],
            begins=[one.begin for one in ones],
        )

    return update


_ADAM: Final = _Kind(
    ("beta_1", "beta_2", "epsilon"),
    (internals.ADAM_MOMENTUM, internals.ADAM_VELOCITY),
    _adam,
)
_KINDS: Final[dict[type, _Kind]] = {
    keras.optimizers.SGD: _Kind(("momentum",), (internals.SGD_MOMENTUM,), _momentum),
    keras.optimizers.Adam: _ADAM,
    keras.optimizers.AdamW: _ADAM,
}
