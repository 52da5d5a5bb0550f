"""What ranks get on top of what ringrun inherited."""

import os

import pytest

from ring_keras.config import variables
from ring_keras.horovod._import_hook import IMPORT_DIRECTORY
from ring_keras.launch.cli import main
from ring_keras.launch.control_group import usable_cores
from ring_keras.launch.environment import added_variables, hash_seed


def test_ranks_share_the_cores():
    cores = usable_cores()

    for size in (1, 2, 1000):
        added = added_variables(size=size, inherited={}, chosen={})
        assert added["TF_NUM_INTRAOP_THREADS"] == str(max(1, cores // size))


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"])
def test_a_users_own_division_of_cores_stands(name):
    by_shell = added_variables(size=2, inherited={name: "7"}, chosen={})
    by_option = added_variables(size=2, inherited={}, chosen={name: "7"})

    assert "TF_NUM_INTRAOP_THREADS" not in by_shell
    assert by_option == {name: "7", "PYTHONUNBUFFERED": "1"}


def test_a_users_own_path_stays_behind_horovods():
    for given in (
        {"inherited": {"PYTHONPATH": "mine"}, "chosen": {}},
        {"inherited": {}, "chosen": {"PYTHONPATH": "mine"}},
    ):
        added = added_variables(size=1, as_horovod=True, **given)
        directory, mine = added["PYTHONPATH"].split(os.pathsep)
        assert directory == IMPORT_DIRECTORY
        assert mine == "mine"
    assert "PYTHONPATH" not in added_variables(size=1, inherited={}, chosen={})


def test_all_ranks_hash_alike():
    assert hash_seed({"PYTHONHASHSEED": "7"}) == {"PYTHONHASHSEED": "7"}
    assert hash_seed({"PYTHONHASHSEED": ""}) != hash_seed({})
    assert hash_seed({}, b"secret") == hash_seed({}, b"secret")
    assert hash_seed({}, b"secret") != hash_seed({}, b"another")


def test_print_env_lists_every_variable(capsys, monkeypatch):
    monkeypatch.setenv("RING_KERAS_TCP_STREAMS", "3")

    assert main(["--print-env"]) == 0

    text = capsys.readouterr().out
    for variable in variables():
        assert f"{variable.name} (default {variable.default}" in text
    assert "RING_KERAS_TCP_STREAMS (default 2, now '3')" in text
