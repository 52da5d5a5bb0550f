"""The classes of errors, and how TensorFlow's become them."""

from __future__ import annotations

import pickle
import subprocess
import sys

import keras
import pytest
import tensorflow as tf

from ring_keras import errors

CLASSES = [
    (errors.RingKerasError, Exception),
    (errors.NotInitializedError, errors.RingKerasError),
    (errors.RankMismatchError, tf.errors.FailedPreconditionError),
    (errors.CorruptDataError, tf.errors.DataLossError),
    (errors.PeerLostError, tf.errors.UnavailableError),
    (errors.CollectiveTimeoutError, tf.errors.DeadlineExceededError),
]


@pytest.mark.parametrize(("cls", "base"), CLASSES)
def test_each_is_ours_and_tensorflows(
    cls: type[errors.RingKerasError], base: type[Exception]
) -> None:
    error = cls("rank 1 is gone")

    assert isinstance(error, errors.RingKerasError)
    assert isinstance(error, base)
    assert str(error) == error.message == "rank 1 is gone"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)


def test_without_tensorflow_the_core_names_the_class() -> None:
    program = """
import sys
from ring_keras import _native
sys.modules["tensorflow"] = None  # As if it were not installed.
try:
    _native.topology()
except RuntimeError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.startswith("NotInitializedError: "), ended.stderr


def test_broken_communicators_have_a_class() -> None:
    assert issubclass(errors.PeerLostError, errors.CommunicationError)
    assert issubclass(errors.CollectiveTimeoutError, errors.CommunicationError)
    assert not issubclass(errors.RankMismatchError, errors.CommunicationError)
    assert not issubclass(errors.CorruptDataError, errors.CommunicationError)


def test_the_name_of_the_class_is_not_said_twice() -> None:
    assert str(errors.PeerLostError("PeerLostError: rank 1")) == "rank 1"


@pytest.mark.parametrize(
    "text",
    [
        "{} [Op:RingKerasAllreduce] name: ",
        "{{{{function_node __wrapped__X}}}} {} [Op:RingKerasAllreduce]",
        "Graph execution error:\n\nDetected at node X defined at (most recent call "
        'last):\n  File "a.py", line 1\n{}\n\t [[{{{{node X}}}}]] [Op:__inference_1]',
        "2 root error(s) found.\n  (0) UNAVAILABLE:  {}\n\t [[{{{{node X}}}}]]\n  (1) "
        "UNAVAILABLE:  {}\n\t [[{{{{node Y}}}}]]\n0 successful operations.",
    ],
)
def test_tensorflows_decorations_go(text: str) -> None:
    message = "rank 1 (host h, pid 7) was killed by SIGKILL: see [rank 1]'s output."
    raw = tf.errors.UnavailableError(
        None, None, text.format(*[f"PeerLostError: {message}"] * 2)
    )

    with pytest.raises(errors.PeerLostError) as info, errors.translated():
        raise raw

    assert str(info.value) == message
    assert info.value.__cause__ is raw


def test_other_errors_pass_unchanged() -> None:
    ours = errors.RankMismatchError("text")
    for error in (
        tf.errors.UnavailableError(None, None, "no network"),
        ValueError("PeerLostError: no error of TensorFlow's"),
        ours,
    ):
        with pytest.raises(type(error)) as info, errors.translated():
            raise error
        assert info.value is error


def test_translates_as_a_decorator() -> None:
    @errors.translated()
    def fail() -> None:
        raise tf.errors.FailedPreconditionError(None, None, "RankMismatchError: x")

    for _ in range(2):
        with pytest.raises(errors.RankMismatchError, match=r"^x$"):
            fail()


def test_an_error_of_a_trace_is_found_in_what_autograph_makes_of_it() -> None:
    @tf.function
    def traced() -> None:
        raise errors.PeerLostError("rank 1 died")

    with pytest.raises(Exception, match="rank 1 died") as raised:
        traced()

    found = errors.from_tensorflow(raised.value)
    assert type(found) is errors.PeerLostError
    assert found.message == "rank 1 died"


class Raises(keras.layers.Layer):
    """A layer in which the ranks' errors come up."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def call(self, x: tf.Tensor) -> tf.Tensor:
        raise self.error


@pytest.mark.parametrize("kind", [errors.PeerLostError, errors.RankMismatchError])
def test_an_error_in_a_layer_stays_what_it_is(
    kind: type[errors.RingKerasError],
) -> None:
    error = kind("rank 1 died")
    with pytest.raises(kind) as raised:
        Raises(error)(tf.ones([1, 1]))

    assert raised.value is error
