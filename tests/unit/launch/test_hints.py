"""What ringrun makes of what ranks have printed, and of what it was told to run."""

from __future__ import annotations

import pytest

from ring_keras.launch.cli import _is_script
from ring_keras.launch.hints import hints_in

OF_KERAS_2 = (
    b"    print(optimizer.variables())\n          ~~~^^\nTypeError: 'list' object"
)


def test_a_call_of_what_was_a_method_has_a_hint() -> None:
    (hint,) = hints_in(OF_KERAS_2 + b" is not callable")

    assert "TF_USE_LEGACY_KERAS=1" in hint


def test_a_cache_file_of_two_ranks_has_a_hint() -> None:
    # As tf.data says it, below an "AlreadyExistsError: Graph execution error:".
    said = b"concurrent caching iterator running - cache lockfile already exists ('x')"

    (hint,) = hints_in(said)

    assert "two ranks write one cache file" in hint


def test_an_export_of_two_ranks_has_a_hint() -> None:
    said = (
        b"tensorflow.python.framework.errors_impl.InvalidArgumentError: "
        b"{{function_node __wrapped__MergeV2Checkpoints_device_/job:localhost}} "
        b"allow_missing_files was set to false and exp/variables did not exist"
    )

    (hint,) = hints_in(b"Traceback:\n" + said)

    assert "before model.export()" in hint


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        b"ValueError: x\nmodel.variables()" + b"\n   " * 400 + b"x",
        b"variables() " * 40000 + b"\nTypeError: " + b"a" * 400000,
        b"ValueError: " + b"variables()\n \n \n " * 20000,
        b"InvalidArgumentError: x " * 20000,
    ],
    ids=["empty lines", "long lines", "many calls", "many errors"],
)
def test_anything_else_is_looked_through_in_no_time(text: bytes) -> None:
    assert list(hints_in(text)) == []


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "./train.py",
        "python -u -W ignore train.py -c 3",
        "python3.11 -m my.training",
        "python -um training",
    ],
)
def test_a_script_is_expected_to_join(command: str) -> None:
    assert _is_script(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "hostname",
        "python",
        "python --version",
        "python -V",
        "python -W ignore -c 1",
        "python -uc 1",
        "python -m this",
        "python -m pip list",
        "python -m ring_keras.launch -np 2 hostname",
    ],
)
def test_other_commands_are_not(command: str) -> None:
    assert not _is_script(command.split())
