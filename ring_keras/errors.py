"""What ring_keras raises, and how errors of TensorFlow and JAX become it.

Their text begins with a code, such as `[RK302]`, by which docs/troubleshooting.md
explains them; `error.code` has it, and `code_of()` finds it in errors of other classes.

A collective that fails inside TensorFlow surfaces as a `tf.errors.OpError`
whose text starts with one of the names below. `translated()` turns it into the
class of that name, so that one `except` clause serves eager calls, graph calls
and `model.fit`.

Where Keras's back end is another, TensorFlow is not loaded, and its classes are none
of these errors' bases.
"""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from ring_keras import _native
from ring_keras._codes import CodedMixin, codes_in
from ring_keras.config import keras_backend

__all__ = [
    "CollectiveTimeoutError",
    "CommunicationError",
    "CorruptDataError",
    "NotInitializedError",
    "PeerLostError",
    "RankMismatchError",
    "RingKerasError",
    "code_of",
    "from_tensorflow",
    "translated",
]


def _tensorflows(name: str) -> type[Exception]:
    """TensorFlow's error class, which ours is as well; Exception if there is none."""
    if keras_backend().name != "tensorflow":
        return Exception
    cls: type[Exception] = getattr(importlib.import_module("tensorflow").errors, name)
    return cls


_FailedPreconditionError: Any = _tensorflows("FailedPreconditionError")
_DataLossError: Any = _tensorflows("DataLossError")
_UnavailableError: Any = _tensorflows("UnavailableError")
_DeadlineExceededError: Any = _tensorflows("DeadlineExceededError")


def _begin(error: Exception, base: Any, message: str) -> None:
    """What the `__init__` of a class does that may be TensorFlow's as well."""
    if base is not Exception:
        base.__init__(error, None, None, message)
    error.args = (message,)


class RingKerasError(CodedMixin, Exception):
    """Base class of every error that is ring_keras's own.

    Examples:
        >>> try:
        ...     ring.monitoring.stop_timeline()
        ... except ring.RingKerasError as error:
        ...     print(error)
        [RK410] no timeline is being recorded. Call start_timeline() first.
    """

    # Keras makes a new one of an error that a layer or an operation raises, with that
    # one's arguments in its text, unless it finds this: it would fail on ours.
    _keras_call_info_injected = True

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text, without the name of the class."""
        return str(self.args[0]).removeprefix(f"{type(self).__name__}: ")

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type["RingKerasError"], tuple[str]]:
        return type(self), (self.message,)


class NotInitializedError(RingKerasError, ValueError):
    """`ring_keras.init()` has not run, or `shutdown()` has.

    Examples:
        >>> ring.shutdown()
        >>> try:
        ...     ring.rank()
        ... except ring.NotInitializedError:
        ...     ring.init()
    """


class RankMismatchError(RingKerasError, _FailedPreconditionError):  # type: ignore[misc]
    """The ranks disagree about a collective; the communicator stays usable.

    Examples:
        >>> try:
        ...     ring.allreduce(tf.ones(ring.rank() + 1), name="ragged")
        ... except ring.RankMismatchError as error:
        ...     print("shape differs across ranks" in str(error))
        True
    """

    def __init__(self, message: str) -> None:
        _begin(self, _FailedPreconditionError, message)


class CorruptDataError(RingKerasError, _DataLossError):  # type: ignore[misc]
    """The result of a reduction does not fit the ranks' contributions.

    A host's memory, processor or network is faulty. The communicator stays usable, but
    that host should not be used.

    Examples:
        With `RING_KERAS_CHECK_REDUCTIONS=1` in the environment:

        >>> model.compile(ring.DistributedOptimizer("sgd"), loss="mse")
        >>> try:
        ...     history = model.fit(*ring.data.shard((x, y)), verbose=0)
        ... except ring.CorruptDataError as error:
        ...     print("replace the host that is named here:", error)
    """

    def __init__(self, message: str) -> None:
        _begin(self, _DataLossError, message)


class CommunicationError(RingKerasError, RuntimeError):
    """The communicator is broken: no further collective can run on it.

    A RuntimeError, as Horovod's `HorovodInternalError` is.

    Examples:
        Whatever breaks the job, on any rank:

        >>> try:
        ...     total = ring.allreduce(tf.ones(3), op=ring.Sum)
        ... except ring.CommunicationError:
        ...     ring.shutdown()  # And perhaps init() again, or exit.
    """


class PeerLostError(CommunicationError, _UnavailableError):  # type: ignore[misc]
    """A rank died or left while the others needed it.

    Examples:
        >>> try:
        ...     total = ring.allreduce(tf.ones(3), op=ring.Sum)
        ... except ring.PeerLostError as error:
        ...     print("saving before exit:", error)
    """

    def __init__(self, message: str) -> None:
        _begin(self, _UnavailableError, message)


class CollectiveTimeoutError(CommunicationError, _DeadlineExceededError):  # type: ignore[misc]
    """A rank stayed silent for `RING_KERAS_COLLECTIVE_TIMEOUT_S` seconds.

    Examples:
        >>> try:
        ...     total = ring.allreduce(tf.ones(3), op=ring.Sum)
        ... except ring.CollectiveTimeoutError as error:
        ...     print("a rank is stuck:", error)
    """

    def __init__(self, message: str) -> None:
        _begin(self, _DeadlineExceededError, message)


_BY_NAME: dict[str, type[RingKerasError]] = {
    cls.__name__: cls
    for cls in (
        RingKerasError,
        NotInitializedError,
        RankMismatchError,
        CorruptDataError,
        PeerLostError,
        CollectiveTimeoutError,
    )
}

# TensorFlow puts the node's name in front and the op's name or a stack trace
# behind; the message itself begins with the class's name.
_MESSAGE = re.compile(rf"\b({'|'.join(_BY_NAME)}): (.*)", re.DOTALL)
_DECORATION = re.compile(r"\s*(?:\[\[|\[Op:|\n\nOriginal stack trace).*", re.DOTALL)


def code_of(error: BaseException) -> str | None:
    """The code of an error, such as `RK302`, or None if it has none.

    It takes any error that ring_keras raises. TensorFlow's errors of a graph have
    codes, too, and so have `ValueError`s, except those about the value of one argument.
    docs/troubleshooting.md and `ringrun --explain RK302` explain each code.

    Examples:
        >>> ring.errors.code_of(ValueError("not of ring_keras")) is None
        True

    Args:
        error: Any exception.

    Returns:
        "RK" and three digits, or None.
    """
    return next(iter(codes_in(str(error))), None)


def from_tensorflow(error: BaseException) -> RingKerasError | None:
    """The ring_keras error that `error` carries, or None if it carries none.

    Examples:
        >>> text = "PeerLostError: rank 1 is gone"
        >>> error = tf.errors.UnavailableError(None, None, text)
        >>> print(ring.errors.from_tensorflow(error))
        rank 1 is gone

    Args:
        error: Any exception.

    Returns:
        The error, or None.
    """
    if isinstance(error, RingKerasError):
        return error
    if type(error).__name__ == "StagingError" and error.__context__ is not None:
        # AutoGraph shows so what a function raised while it was traced.
        return from_tensorflow(error.__context__)
    if isinstance(error, _loaded("tensorflow", "OpError")):
        text = error.message
    elif isinstance(error, _of_jax()):
        text = str(error)
    else:
        return None
    match = _MESSAGE.search(text)
    if match is None:
        return None
    name, text = match.groups()
    return _BY_NAME[name](_DECORATION.sub("", text))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises TensorFlow's and JAX's errors of failed collectives as ring_keras's.

    Other errors pass unchanged. It is a context manager and a decorator.

    Examples:
        >>> @tf.function
        ... def train_step():
        ...     return ring.allreduce(tf.ones(3), op=ring.Sum)
        >>> with ring.errors.translated():  # A PeerLostError is raised as that.
        ...     total = train_step()
    """
    try:
        yield
    except _of_frameworks() as error:
        ours = from_tensorflow(error)
        of_jax = isinstance(error, _of_jax()) and ours is not error
        if of_jax or isinstance(error, _loaded("tensorflow", "AbortedError")):
            # A signal handler raised while the collective waited.
            _native.raise_from_handler()
        if ours is None or ours is error:
            raise
        if of_jax:
            # JAX would raise it again in the next computation.
            importlib.import_module("ring_keras.jax.order").forget_failed()
        raise ours from error
    else:
        # The collective may have ended while the handler ran.
        _native.raise_from_handler()


def _of_frameworks() -> tuple[Any, ...]:
    """The classes of errors that a collective's failure may be for frameworks."""
    return *_loaded("tensorflow", "OpError"), *_of_jax()


def _of_jax() -> tuple[Any, ...]:
    """As it runs what it has compiled, and as it begins to."""
    found = _loaded("jax", "JaxRuntimeError")
    return (*found, ValueError) if found else ()


def _loaded(framework: str, name: str) -> tuple[Any, ...]:
    """Its error class; none, if it is not loaded."""
    module = sys.modules.get(framework)
    return () if module is None else (getattr(module.errors, name),)
